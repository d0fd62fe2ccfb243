package hostmount

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Watch implements [mount.Watcher]. changed is called at most once per
// Options.TableInterval, in the caller's goroutine. A change that others make
// to the very target on which this mounter works in the same interval is
// noticed if the number of mounts there is not what it should be. Since the
// kernel loses a notice now and then, the list of mounts is compared every ten
// seconds as well (every minute before Linux 6.13). While it waits it holds one
// thread.
func (m *Mounter) Watch(ctx context.Context, changed func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w, err := m.newWatch(ctx)
	if err != nil {
		return watchError(ctx, err)
	}
	defer w.close()
	for {
		if err := w.round(ctx, changed); err != nil {
			return err
		}
	}
}

// watch is the state of one call of Watch.
type watch struct {
	m    *Mounter
	file *os.File
	stop *stopper
	log  *ownLog
	// seen is the table that was compared last.
	seen *snapshot
	// pending are changes that could not be judged yet.
	pending map[string]int
	// own is true if this mounter did something before the last comparison.
	own bool
}

// newWatch reads the first table.
func (m *Mounter) newWatch(ctx context.Context) (w *watch, err error) {
	file, err := os.Open(mountinfoPath)
	if err != nil {
		return nil, err
	}
	w = &watch{m: m, file: file, log: m.host.own.subscribe(), pending: map[string]int{}}
	if w.stop, err = newStopper(ctx); err == nil {
		w.seen, err = m.snapshot(ctx, false)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	// What this mounter did before is in the table already.
	m.host.own.reset(w.log)
	return w, nil
}

func (w *watch) close() {
	w.m.host.own.unsubscribe(w.log)
	if w.stop != nil {
		w.stop.close()
	}
	_ = w.file.Close()
}

// round waits for a change, reports it if it is not ours, and pauses.
func (w *watch) round(ctx context.Context, changed func()) error {
	noticed := false
	if len(w.pending) == 0 {
		var err error
		if noticed, err = w.stop.wait(w.file, w.recheck()); err != nil {
			return watchError(ctx, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	foreign, err := w.compare(ctx, noticed)
	if err != nil {
		return watchError(ctx, err)
	}
	if foreign {
		changed()
	}
	return w.pause(ctx)
}

// recheck is how long to rely on the kernel's notices.
func (w *watch) recheck() time.Duration {
	if w.seen.ids == nil {
		return time.Minute
	}
	return 10 * time.Second
}

// compare reads the table and reports whether others changed it.
func (w *watch) compare(ctx context.Context, noticed bool) (bool, error) {
	w.m.host.own.mark(w.log)
	now, err := w.m.snapshot(ctx, false)
	if err != nil {
		return false, err
	}
	for target, n := range difference(w.seen, now) {
		w.pending[target] += n
	}
	inPlace := noticed && len(w.pending) == 0
	w.seen = now
	foreign, own := w.m.host.own.settle(w.log, w.pending)
	// A notice with nothing to show for it: somebody changed a mount in place,
	// or made one and took it away again; unless it came between the last
	// notice and the last reading, for something that we did.
	inPlace = inPlace && !own && !w.own
	w.own = own
	return foreign || inPlace, nil
}

// pause waits until the table may be read again.
func (w *watch) pause(ctx context.Context) error {
	timer := w.m.options.Clock.NewTimer(w.m.options.TableInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}

func watchError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("watch mounts: %w", err)
}

// stopper ends a poll(2) when a context does.
type stopper struct {
	read, write *os.File
	cancel      func() bool
	ended       chan struct{}
}

func newStopper(ctx context.Context) (*stopper, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s := &stopper{read: r, write: w, ended: make(chan struct{})}
	s.cancel = context.AfterFunc(ctx, func() {
		_ = w.Close()
		close(s.ended)
	})
	return s, nil
}

// wait returns when the mount table changed (true), the context ended or the
// time is over.
func (s *stopper) wait(file *os.File, timeout time.Duration) (bool, error) {
	fds := []unix.PollFd{
		{Fd: int32(file.Fd()), Events: unix.POLLPRI},  //nolint:gosec // a descriptor
		{Fd: int32(s.read.Fd()), Events: unix.POLLIN}, //nolint:gosec // a descriptor
	}
	err := retry(func() error { _, err := unix.Poll(fds, int(timeout.Milliseconds())); return err })
	return fds[0].Revents != 0, err
}

func (s *stopper) close() {
	if !s.cancel() {
		<-s.ended
	}
	_ = s.write.Close()
	_ = s.read.Close()
}
