package registration

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// noticePause is between a notice and the look that follows: what happens
	// together (unlink and bind) is seen together.
	noticePause = 5 * time.Millisecond
	// In a storm of notices, the pause after a look is so many times its
	// length, a second at most.
	lookShare = 4
	// youth is how long after its making a socket may not be listened on yet,
	// without that being a failure.
	youth = time.Second
	// steady is how long a connection must have been there for its loss to
	// count as the first failure again.
	steady = time.Minute
)

// run is the state of one Run. It belongs to the goroutine in loop; others
// hand in what they found through the channels.
type run struct {
	w       *Watcher
	scanner *scanner
	wg      sync.WaitGroup

	sockets    map[string]*socket
	folder     Folder
	generation uint64
	asking     int // attempts under way

	scanning  bool
	scanBegun time.Time
	scanAt    time.Time
	scanAfter time.Time // not before, whatever is noticed
	// noticed is set from a notice to the beginning of the look that it leads
	// to. Further notices wait until then: they would lead to the same look.
	noticed bool

	scans chan survey
	done  chan outcome
	lost  chan *link
}

// socket is what is known about one path.
type socket struct {
	path string
	id   Identity
	// gone is set when there is no socket any more; it stays here until its
	// instances are deregistered.
	gone bool
	// cur is registered from this file, prev are instances that were
	// registered from other files and end when it is known what comes instead.
	cur  *Instance
	prev []Instance
	link *link

	// cancel is set while there is a job for this path: an attempt, or the end
	// of instances. cut is set when that was called because the job's file is
	// not the one that counts any more.
	cancel context.CancelFunc
	cut    bool

	info      Info
	state     State
	since     time.Time
	seen      time.Time // when this file was first seen
	attempts  int       // with this file, since the last success
	quick     int       // of them, those that came too early
	failures  int       // in a row; for the backoff
	lastError string
	next      time.Time // when to ask, zero for not at all
}

// enter changes the state.
func (s *socket) enter(state State, now time.Time) {
	if s.state != state {
		s.state, s.since = state, now
	}
}

// renew begins anew with the file id.
func (s *socket) renew(id Identity, now time.Time) {
	s.id, s.gone, s.info, s.seen, s.lastError = id, false, Info{}, now, ""
	s.attempts, s.quick, s.failures, s.next = 0, 0, 0, now
	s.state, s.since = Registering, now
}

// retire makes the instance that was registered one of those that go, and drops
// the connection to it.
func (s *socket) retire() {
	if s.cur != nil {
		s.prev = append(s.prev, *s.cur)
		s.cur = nil
	}
	s.unlink()
}

func (s *socket) unlink() {
	if s.link != nil {
		s.link.cancel()
		s.link = nil
	}
}

// interrupt ends an attempt whose file has gone.
func (s *socket) interrupt() {
	if s.cancel != nil {
		s.cancel()
		s.cut = true
	}
}

func newRun(w *Watcher) *run {
	return &run{
		w: w, generation: w.generation,
		scanner: &scanner{
			dir: w.config.Dir, create: w.config.Create, maxFolders: w.config.MaxFolders,
			open: w.open, notice: w.Rescan,
		},
		sockets: map[string]*socket{},
		folder:  Folder{Path: w.config.Dir, Watch: Periodic},
		scans:   make(chan survey),
		done:    make(chan outcome),
		lost:    make(chan *link),
	}
}

// end waits for everything that was started.
func (r *run) end(cancel context.CancelFunc) {
	cancel()
	r.wg.Wait()
	r.scanner.close()
}

func (r *run) loop(ctx context.Context) {
	timer := r.w.config.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := r.now()
		r.look(ctx, now)
		r.work(ctx, now)
		timer.Reset(r.pause(now))
		r.w.setStatus(r.status()) // last, so that who sees it can step a fake clock
		poke := r.w.poke
		if r.noticed {
			poke = nil
		}
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-poke:
			r.notice(r.now())
		case s := <-r.scans:
			r.apply(s, r.now())
		case o := <-r.done:
			r.finish(ctx, o, r.now())
		case l := <-r.lost:
			r.disconnected(l, r.now())
		}
	}
}

func (r *run) now() time.Time { return r.w.config.Clock.Now() }

// notice plans a look soon.
func (r *run) notice(now time.Time) {
	r.noticed = true
	if r.scanning {
		return
	}
	at := now.Add(noticePause)
	if at.Before(r.scanAfter) {
		at = r.scanAfter
	}
	if at.Before(r.scanAt) {
		r.scanAt = at
	}
}

// look starts a look at the folder if one is due.
func (r *run) look(ctx context.Context, now time.Time) {
	if r.scanning || now.Before(r.scanAt) {
		return
	}
	r.scanning, r.scanBegun, r.noticed = true, now, false
	select {
	case <-r.w.poke:
	default:
	}
	known := make(map[string]Identity, len(r.sockets))
	for path, s := range r.sockets {
		if !s.gone {
			known[path] = s.id
		}
	}
	r.wg.Go(func() {
		s := r.scanner.scan(known)
		select {
		case r.scans <- s:
		case <-ctx.Done():
		}
	})
}

// pause is how long there is nothing to do if nothing happens.
func (r *run) pause(now time.Time) time.Duration {
	next := now.Add(r.w.config.RescanPeriod)
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if !r.scanning {
		sooner(r.scanAt)
	}
	for _, s := range r.sockets {
		// What is due and has not begun waits for another to end.
		if s.cancel == nil && s.next.After(now) {
			sooner(s.next)
		}
	}
	return max(next.Sub(now), 0)
}

// work starts what is due.
func (r *run) work(ctx context.Context, now time.Time) {
	var due []*socket
	for path, s := range r.sockets {
		switch {
		case s.cancel != nil:
		case !s.gone:
			if !s.next.IsZero() && !s.next.After(now) {
				due = append(due, s)
			}
		case s.cur == nil && len(s.prev) == 0:
			delete(r.sockets, path)
		default:
			r.startEnd(ctx, s)
		}
	}
	slices.SortFunc(due, func(a, b *socket) int {
		return cmp.Or(a.next.Compare(b.next), cmp.Compare(a.path, b.path))
	})
	for _, s := range due {
		if r.asking >= r.w.config.MaxParallel {
			return
		}
		r.startAttempt(ctx, s, now)
	}
}

// apply compares what is there with what was.
func (r *run) apply(s survey, now time.Time) {
	r.scanning = false
	r.scanAt = now.Add(r.w.config.RescanPeriod)
	r.scanAfter = now.Add(min(lookShare*now.Sub(r.scanBegun), time.Second))
	if r.noticed {
		r.notice(now)
	}
	var fresh []*socket
	skipped := 0
	for _, path := range slices.Sorted(maps.Keys(s.sockets)) {
		id := s.sockets[path]
		sock := r.sockets[path]
		if sock == nil {
			if len(r.sockets) >= r.w.config.MaxSockets {
				skipped++
				continue
			}
			sock = &socket{path: path}
			sock.renew(id, now)
			r.sockets[path] = sock
			fresh = append(fresh, sock)
			continue
		}
		if r.present(sock, id, now) {
			fresh = append(fresh, sock)
		}
	}
	for path, sock := range r.sockets {
		if _, ok := s.sockets[path]; !ok && !sock.gone {
			r.vanished(sock, fresh)
		}
	}
	r.describe(s, skipped, now)
}

// present enters that id is at a known path, and reports whether it is new
// there.
func (r *run) present(sock *socket, id Identity, now time.Time) (fresh bool) {
	switch {
	case !sock.id.Same(id):
		sock.interrupt()
		sock.retire()
		sock.renew(id, now)
		return true
	case sock.gone: // away and back
		sock.gone = false
		sock.next = now
		sock.enter(Registering, now)
	case !sock.id.Changed.Equal(id.Changed) && !sock.next.IsZero():
		// Mode or owner changed: it may let us connect now.
		sock.failures, sock.next = 0, now
	}
	sock.id = id
	return false
}

// vanished enters that there is nothing at the path of sock any more. If its
// file is now at a new path, the registration goes on until there is one from
// there.
func (r *run) vanished(sock *socket, fresh []*socket) {
	sock.interrupt()
	sock.gone = true
	sock.unlink()
	if sock.cancel != nil {
		return
	}
	for _, to := range fresh {
		if to.id.Same(sock.id) {
			sock.retire()
			to.prev = append(to.prev, sock.prev...)
			sock.prev = nil
			return
		}
	}
}

func (r *run) describe(s survey, skipped int, now time.Time) {
	f := Folder{
		Path: r.w.config.Dir, Exists: s.exists, LastLook: now, Watch: Periodic,
		Folders: s.folders, Skipped: skipped, Overflows: s.lost,
	}
	if s.watched {
		f.Watch = Notified
	}
	if s.problem != nil {
		f.Problem = bounded(s.problem.Error())
	}
	if s.unwatched != nil {
		f.WatchProblem = bounded(s.unwatched.Error())
	}
	log := r.w.config.Log
	if f.Problem != "" && f.Problem != r.folder.Problem {
		log.Error(s.problem, "Read the plugin folder", "folder", f.Path)
	}
	if f.WatchProblem != "" && f.WatchProblem != r.folder.WatchProblem {
		log.Error(s.unwatched, "Watch the plugin folder, it is read by period instead", "folder", f.Path)
	}
	if skipped > 0 && r.folder.Skipped == 0 {
		log.Info("Sockets above the bound are ignored", "folder", f.Path, "sockets", len(r.sockets), "skipped", skipped)
	}
	r.folder = f
}
