package registration

import "errors"

// errBroken is in the errors of add when there will be no more notices.
var errBroken = errors.New("no more notices")

// events is the kernel's notice that something may have changed. It says when
// to look, never what is there. One goroutine at a time uses it.
type events interface {
	// add watches a folder, or keeps watching it. With a name, only what
	// happens to that name counts.
	add(dir, name string) error
	// sweep stops watching what was not added since the last sweep.
	sweep()
	// overflows is how often notices were lost.
	overflows() uint64
	// close returns when no more notices come.
	close()
}

// opener makes events that call notice, which does not block.
type opener func(notice func()) (events, error)
