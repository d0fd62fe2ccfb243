package registration

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxEntries bounds how many names are read in one look.
const maxEntries = 1 << 16

// survey is what one look at the folder found.
type survey struct {
	sockets map[string]Identity
	exists  bool
	folders int
	watched bool
	lost    uint64
	// incomplete is set if there may be more than was found; problem says why,
	// or what else was wrong.
	incomplete bool
	problem    error
	unwatched  error
}

// scanner looks at the folder. One goroutine at a time uses it.
type scanner struct {
	dir        string
	create     bool
	maxFolders int
	open       opener
	notice     func()
	events     events
}

func (s *scanner) close() {
	if s.events != nil {
		s.events.close()
		s.events = nil
	}
}

// scan looks. known are the sockets that were there before: of them it says for
// certain what is there now, even where the look at the whole is incomplete.
func (s *scanner) scan(known map[string]Identity) survey {
	r := survey{sockets: map[string]Identity{}}
	s.prepare(&r)
	s.walk(&r)
	if s.events != nil {
		s.events.sweep()
		r.lost = s.events.overflows()
	}
	r.watched = s.events != nil && r.unwatched == nil
	if r.incomplete {
		keepKnown(r.sockets, known)
	}
	return r
}

// keepKnown adds the known sockets that are still there, or may be.
func keepKnown(sockets, known map[string]Identity) {
	for path, before := range known {
		if _, ok := sockets[path]; ok {
			continue
		}
		id, socket, err := identify(path)
		switch {
		case err == nil && socket:
			sockets[path] = id
		case err != nil && !gone(err):
			sockets[path] = before
		}
	}
}

// gone reports whether the error says that there is no such file.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// prepare makes the folder if that is wanted, and watches what is above it:
// there its removal and its return are seen, which a bound socket in it hides
// from a watch on itself.
func (s *scanner) prepare(r *survey) {
	if s.events == nil {
		s.events, r.unwatched = s.open(s.notice)
	}
	s.watchAbove(r)
	if !s.create {
		return
	}
	if err := os.MkdirAll(s.dir, 0o750); err != nil {
		r.problem = err
	}
}

func (s *scanner) watchAbove(r *survey) {
	const tries = 8 // while folders appear under our hands
	for range tries {
		child, parent := s.dir, filepath.Dir(s.dir)
		for s.watch(r, parent, filepath.Base(child)) && parent != filepath.Dir(parent) {
			child, parent = parent, filepath.Dir(parent)
		}
		if child == s.dir {
			return
		}
		if _, err := os.Stat(child); err != nil {
			return
		}
	}
}

// watch reports whether there is no such folder.
func (s *scanner) watch(r *survey, dir, name string) (missing bool) {
	if s.events == nil {
		return false
	}
	err := s.events.add(dir, name)
	switch {
	case err == nil:
	case gone(err):
		return true
	case errors.Is(err, errBroken):
		r.unwatched = err
		s.close() // the next look begins anew
	default:
		// What is watched stays so, what is not is found by period. The next
		// look tries again, for a limit may be a passing one.
		r.unwatched = err
	}
	return false
}

// walk reads the folder and what is below it. A folder is watched before it is
// read, so that nothing comes between.
func (s *scanner) walk(r *survey) {
	left := maxEntries
	queue := []string{s.dir}
	for len(queue) > 0 {
		dir := queue[0]
		queue = queue[1:]
		s.watch(r, dir, "")
		below, err := s.read(r, dir, &left)
		switch {
		case err == nil:
			r.exists = true
			r.folders++
		case !gone(err):
			s.fault(r, err)
		case dir == s.dir && !errors.Is(err, fs.ErrNotExist):
			s.fault(r, err)
		}
		if room := s.maxFolders - r.folders - len(queue); len(below) > room {
			s.fault(r, fmt.Errorf("more than %d folders below %s", s.maxFolders, s.dir))
			below = below[:max(0, room)]
		}
		queue = append(queue, below...)
	}
}

func (s *scanner) fault(r *survey, err error) {
	r.incomplete = true
	if r.problem == nil {
		r.problem = err
	}
}

// read enters the sockets of one folder and returns the folders in it.
func (s *scanner) read(r *survey, dir string, left *int) (below []string, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(256)
		for _, entry := range entries {
			if *left == 0 {
				s.fault(r, fmt.Errorf("more than %d names below %s", maxEntries, s.dir))
				return below, nil
			}
			*left--
			if s.entry(r, dir, entry) {
				below = append(below, filepath.Join(dir, entry.Name()))
			}
		}
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return below, err
		}
	}
}

// entry enters a socket, and reports whether it is a folder instead.
func (s *scanner) entry(r *survey, dir string, entry fs.DirEntry) (folder bool) {
	if strings.HasPrefix(entry.Name(), ".") {
		return false
	}
	switch {
	case entry.IsDir():
		return true
	case entry.Type()&(fs.ModeSocket|fs.ModeSymlink|fs.ModeIrregular) == 0:
		return false
	}
	path := filepath.Join(dir, entry.Name())
	id, socket, err := identify(path)
	switch {
	case err != nil && !gone(err):
		s.fault(r, err)
	case err != nil || !socket:
	default:
		r.sockets[path] = id
	}
	return false
}
