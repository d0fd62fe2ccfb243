package projection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// One reader holds "..data" for each round and must see one version of all
// files; the other opens stable files by name and must always find them.
func TestWriterReaders(t *testing.T) {
	const keys, updates = 5, 300
	dir := memory(t)
	content := func(version int) *Tree {
		m := map[string]string{}
		for k := range keys {
			m[fmt.Sprint("stable", k)] = fmt.Sprint(version)
		}
		m[fmt.Sprint("key", version%3)] = fmt.Sprint(version)
		return files(t, m)
	}
	write(t, dir, content(0))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 2)
	rounds := make(chan struct{}, 1)
	go func() { done <- readVersions(ctx, dir, rounds) }()
	go func() { done <- readNames(ctx, dir, keys) }()
	w := &Writer{Root: openRoot(t, dir), Linger: 2 * time.Millisecond}
	for version := 1; version <= updates; version++ {
		if _, err := w.Write(context.Background(), content(version)); err != nil {
			t.Fatal(err)
		}
		if version%50 == 0 {
			select { // the reader runs beside the writer, not after it
			case <-rounds:
			case err := <-done:
				stop()
				<-done
				t.Fatalf("after %d updates: %v", version, err)
			}
		}
	}
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	tidy(t, dir)
}

func readVersions(ctx context.Context, dir string, rounds chan<- struct{}) error {
	for ctx.Err() == nil {
		root, err := os.OpenRoot(filepath.Join(dir, "..data"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // replaced between the link and the folder that it names
		}
		if err != nil {
			return err
		}
		err = oneVersion(root)
		_ = root.Close()
		if err != nil {
			return err
		}
		select {
		case rounds <- struct{}{}:
		default:
		}
	}
	return nil
}

func oneVersion(root *os.Root) error {
	names, err := fs.ReadDir(root.FS(), ".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was removed meanwhile, for having been held too long
	}
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, e := range names {
		data, err := root.ReadFile(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // an old version that is being removed
		}
		if err != nil {
			return err
		}
		seen[string(data)] = true
	}
	if len(seen) > 1 {
		return fmt.Errorf("one version holds %v", slices.Collect(maps.Keys(seen)))
	}
	return nil
}

func readNames(ctx context.Context, dir string, keys int) error {
	missed, reads := 0, 0
	for ctx.Err() == nil {
		for k := range keys {
			reads++
			data, err := os.ReadFile(fmt.Sprintf("%s/stable%d", dir, k))
			if errors.Is(err, fs.ErrNotExist) && missed < 3+reads/1000 {
				// A machine that stops in the middle of open(2), for longer than
				// the old version lingers, can do that. It is rare, or a fault: a
				// writer with a gap in each update is seen in one read of a hundred.
				missed++
				continue
			}
			if err != nil {
				return err
			}
			if len(data) == 0 {
				return errors.New("an empty file was seen")
			}
		}
	}
	return nil
}
