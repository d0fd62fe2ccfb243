package main

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// Editors write in several steps: the folder is read when they pause, and
	// while they do not, now and then.
	pause    = 30 * time.Millisecond
	patience = time.Second
	// The folder itself may be replaced by another.
	lookAgain = 2 * time.Second
)

// watch calls changed, with the time of the first change, soon after anything
// in the folder changed, and once at the beginning. It ends with ctx.
func watch(ctx context.Context, dir string, out *console, changed func(since time.Time)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	missing := w.Add(dir) != nil
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	since := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	notice := func() {
		if since.IsZero() {
			since = time.Now()
		}
		timer.Reset(max(0, min(pause, time.Until(since.Add(patience)))))
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			notice()
		case err := <-w.Errors: // an overflow, at worst: read everything
			out.fault("watching %s: %v", dir, err)
			notice()
		case <-again.C:
			// The same folder again is no change.
			was := missing
			missing = w.Add(dir) != nil
			if was != missing {
				notice()
			}
		case <-timer.C:
			changed(since)
			since = time.Time{}
		}
	}
}
