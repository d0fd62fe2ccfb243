package registration

import (
	"slices"
	"strings"
	"time"
)

// State says where a socket stands.
type State string

// The states of a socket.
const (
	// Registering: the plugin is being asked, will be in a moment, or waits for
	// its turn.
	Registering State = "Registering"
	// Registered: its handler has it and the plugin knows.
	Registered State = "Registered"
	// Failed: the last attempt ended in an error; there will be another.
	Failed State = "Failed"
	// Stale: the file is there, but nobody listens behind it, or the
	// connection to who did is lost. It is tried again.
	Stale State = "Stale"
)

// Watch says how changes in the folder are noticed.
type Watch string

// The ways to notice changes.
const (
	// Notified: the kernel says when to look, and there is the periodic look.
	Notified Watch = "Notified"
	// Periodic: there is only the periodic look, at least for a part of the
	// folder.
	Periodic Watch = "Periodic"
)

// Status is what a [Watcher] knows. It is a copy.
type Status struct {
	Folder Folder
	// Sockets are sorted by path.
	Sockets []Socket
}

// Folder is the state of the watched folder.
type Folder struct {
	Path string
	// Exists is whether it could be read at the last look, at LastLook.
	Exists   bool
	LastLook time.Time
	Watch    Watch
	// Folders is how many there are, the watched one included.
	Folders int
	// Skipped is how many sockets there are above the bound.
	Skipped int
	// Overflows is how often the kernel lost notices. Each was followed by a
	// look.
	Overflows uint64
	// Problem says what could not be read, WatchProblem what could not be
	// watched; empty if nothing.
	Problem, WatchProblem string
}

// Socket is the state of one socket.
type Socket struct {
	Path string
	// Info is what the plugin said last, empty while it has said nothing that
	// could be used.
	Info  Info
	State State
	// Since is when State began.
	Since time.Time
	// Registered is whether an instance from this very socket is registered,
	// whatever State says about the last attempt; Generation is that
	// instance's, 0 for none.
	Registered bool
	Generation uint64
	// Attempts is how many there were with this file since the last success,
	// LastError is how the last one failed. NextTry is when the next one is
	// due, the zero time if none is.
	Attempts  int
	LastError string
	NextTry   time.Time
}

func (s Status) clone() Status {
	s.Sockets = slices.Clone(s.Sockets)
	for i := range s.Sockets {
		s.Sockets[i].Info.Versions = slices.Clone(s.Sockets[i].Info.Versions)
	}
	return s
}

// status copies the state of the run.
func (r *run) status() Status {
	s := Status{Folder: r.folder, Sockets: make([]Socket, 0, len(r.sockets))}
	for _, sock := range r.sockets {
		if sock.gone {
			continue
		}
		one := Socket{
			Path: sock.path, Info: sock.info, State: sock.state, Since: sock.since,
			Attempts: sock.attempts, LastError: sock.lastError, NextTry: sock.next,
		}
		if sock.cur != nil {
			one.Registered, one.Generation = true, sock.cur.Generation
		}
		s.Sockets = append(s.Sockets, one)
	}
	slices.SortFunc(s.Sockets, func(a, b Socket) int { return strings.Compare(a.Path, b.Path) })
	return s
}
