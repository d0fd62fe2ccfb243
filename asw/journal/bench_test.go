package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/volumekit/volumekit/asw/journal"
)

// benchDir is on a disk where there is one: a temporary folder may be a tmpfs.
func benchDir(b *testing.B) string {
	b.Helper()
	if parent := os.Getenv("VOLUMEKIT_BENCH_DIR"); parent != "" {
		dir, err := os.MkdirTemp(parent, "journal")
		must(b, err)
		b.Cleanup(func() { _ = os.RemoveAll(dir) })
		return dir
	}
	return b.TempDir()
}

// BenchmarkPutDelete is the journal's part of a local volume's life, beside
// the two bare writes.
func BenchmarkPutDelete(b *testing.B) {
	b.Run("floor", func(b *testing.B) {
		f, err := os.Create(filepath.Join(benchDir(b), "floor"))
		must(b, err)
		defer func() { _ = f.Close() }()
		put, del := make([]byte, 380), make([]byte, 220)
		var at int64
		for b.Loop() {
			for _, text := range [][]byte{put, del} {
				if _, err := f.WriteAt(text, at); err != nil {
					b.Fatal(err)
				}
				at = (at + int64(len(text))) % (2 << 20)
			}
		}
	})
	b.Run("journal", func(b *testing.B) {
		j := open(b, benchDir(b), journal.Options{})
		rec, ctx := record(1), b.Context()
		b.ReportAllocs()
		for b.Loop() {
			if err := j.Put(ctx, rec); err != nil {
				b.Fatal(err)
			}
			if err := j.Delete(ctx, rec.Key, false); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		j := open(b, benchDir(b), journal.Options{})
		rec, ctx := record(1), b.Context()
		b.ReportAllocs()
		for b.Loop() {
			if err := j.Put(ctx, rec); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// share runs n calls of work on so many goroutines.
func share(n, goroutines int, work func(n int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				work(i)
			}
		})
	}
	all.Wait()
}

// BenchmarkDurable is the time per durable record when many are written at the
// same time, beside one bare write and sync after another.
func BenchmarkDurable(b *testing.B) {
	b.Run("floor", func(b *testing.B) {
		f, err := os.Create(filepath.Join(benchDir(b), "floor"))
		must(b, err)
		defer func() { _ = f.Close() }()
		text := make([]byte, 380)
		var at int64
		for b.Loop() {
			_, err := f.WriteAt(text, at)
			must(b, err)
			must(b, journal.DataSync(f))
			at += int64(len(text))
		}
	})
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			j := open(b, benchDir(b), journal.Options{})
			b.ResetTimer()
			share(b.N, writers, func(n int) {
				rec := durable(n % 1000)
				rec.DevicePath = fmt.Sprint(n)
				if err := j.Put(b.Context(), rec); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkReplay opens a journal of 20,000 records, beside reading its bytes.
func BenchmarkReplay(b *testing.B) {
	dir := benchDir(b)
	j := open(b, dir, journal.Options{})
	for n := range 20_000 {
		must(b, j.Put(b.Context(), record(n)))
	}
	must(b, j.Close())
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			_ = read(b, logFile(dir))
		}
	})
	b.Run("journal", func(b *testing.B) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for b.Loop() {
			j, err := journal.Open(b.Context(), dir, journal.Options{Namespace: here})
			must(b, err)
			b.StopTimer()
			runtime.GC()
			runtime.ReadMemStats(&after)
			must(b, j.Close())
			b.StartTimer()
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/20_000, "heap-B/record")
	})
}
