package steps

import (
	"sync"

	"github.com/volumekit/volumekit/plugins"
)

// paths keeps two volumes from being handled at one target path at the same
// time: a persistent volume that is made anew under its old name is another
// volume, while its path is that of the one before.
type paths struct {
	mu    sync.Mutex
	users map[plugins.PodVolume]pathUse
}

type pathUse struct {
	id    plugins.VolumeID
	calls int
}

// enter takes hold of a path for a volume, or says which other one has it.
func (p *paths) enter(v plugins.PodVolume, id plugins.VolumeID) (by plugins.VolumeID, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	use := p.users[v]
	if use.calls > 0 && use.id != id {
		return use.id, false
	}
	p.users[v] = pathUse{id, use.calls + 1}
	return id, true
}

// leave lets go and reports whether the path is free now.
func (p *paths) leave(v plugins.PodVolume) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	use := p.users[v]
	if use.calls--; use.calls > 0 {
		p.users[v] = use
		return false
	}
	delete(p.users, v)
	return true
}

// kindPath is the kind of what a step waits for whose path is taken.
const kindPath = "PodVolume"

// takePath takes hold of the step's path. What it returns gives it back, and
// tells the volume that may have been waiting for that.
func (e *Executor) takePath(j *job) (give func(), err error) {
	v, id := j.step.Volume, j.step.ID
	by, ok := e.paths.enter(v, id)
	if !ok {
		return nil, errTaken(v, by)
	}
	return func() {
		if !e.paths.leave(v) || e.Wake == nil {
			return
		}
		if other, ok := e.Desired.IDOf(v); ok && other != id {
			e.Wake(other)
		}
	}, nil
}

// errTaken says that another volume is at the path. It is no failure: the
// other one is being taken away.
func errTaken(v plugins.PodVolume, by plugins.VolumeID) error {
	return plugins.WaitFor(plugins.Ref{Kind: kindPath, Name: v.String()}, errPath{by})
}

type errPath struct{ by plugins.VolumeID }

func (e errPath) Error() string { return "volume " + string(e.by) + " is still at this path" }
