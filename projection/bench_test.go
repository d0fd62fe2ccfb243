package projection

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// benchTree has few small files, as most volumes do.
func benchTree(b *testing.B, n int) *Tree {
	tree := &Tree{}
	for i := range n {
		if err := tree.Add(fmt.Sprint("key", i), File{Data: []byte(strings.Repeat("x", 200)), Mode: 0o644, Source: "bench"}); err != nil {
			b.Fatal(err)
		}
	}
	return tree
}

// BenchmarkFirstWrite beside what the same takes with nothing but the calls.
func BenchmarkFirstWrite(b *testing.B) {
	tree := benchTree(b, 3)
	b.Run("floor", func(b *testing.B) {
		each(b, func(dir string) error {
			must(b, os.Mkdir(dir, 0o755))
			version := filepath.Join(dir, "..2026_01_02_03_04_05.0123456789")
			must(b, os.Mkdir(version, 0o755))
			for _, f := range tree.files {
				must(b, os.WriteFile(filepath.Join(version, f.name), f.Data, os.FileMode(f.Mode)))
			}
			must(b, os.Symlink(filepath.Base(version), filepath.Join(dir, "..data_tmp")))
			must(b, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
			for _, f := range tree.files {
				must(b, os.Symlink("..data/"+f.name, filepath.Join(dir, f.name)))
			}
			return nil
		})
	})
	b.Run("writer", func(b *testing.B) {
		each(b, func(dir string) error {
			must(b, os.Mkdir(dir, 0o755))
			root, err := os.OpenRoot(dir)
			must(b, err)
			_, err = (&Writer{Root: root, Empty: true}).Write(context.Background(), tree)
			must(b, root.Close())
			return err
		})
	})
}

// each gives do a new name each time and removes what it made, off the clock.
func each(b *testing.B, do func(dir string) error) {
	base := memory(b)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		dir := filepath.Join(base, fmt.Sprint(n))
		if err := do(dir); err != nil {
			b.Fatal(err)
		}
		if n++; n%256 == 0 {
			b.StopTimer()
			for i := n - 256; i < n; i++ {
				must(b, os.RemoveAll(filepath.Join(base, fmt.Sprint(i))))
			}
			b.StartTimer()
		}
	}
}

// BenchmarkUnchanged beside reading the files once.
func BenchmarkUnchanged(b *testing.B) {
	for _, n := range []int{3, 20} {
		tree := benchTree(b, n)
		dir := memory(b)
		root, err := os.OpenRoot(dir)
		must(b, err)
		defer root.Close()
		_, err = (&Writer{Root: root}).Write(context.Background(), tree)
		must(b, err)
		b.Run(fmt.Sprint("floor/", n), func(b *testing.B) {
			for b.Loop() {
				for _, name := range tree.Paths() {
					_, err := os.ReadFile(filepath.Join(dir, name))
					must(b, err)
				}
			}
		})
		b.Run(fmt.Sprint("writer/", n), func(b *testing.B) {
			for b.Loop() {
				res, err := (&Writer{Root: root}).Write(context.Background(), tree)
				must(b, err)
				if res.Wrote {
					b.Fatal("wrote")
				}
			}
		})
	}
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}
