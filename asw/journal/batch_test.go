package journal_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/plugins"
)

// gate holds the first append until it is opened, and counts them all.
type gate struct {
	mu      sync.Mutex
	appends int
	entered chan struct{}
	open    chan struct{}
}

func (g *gate) at(point string) error {
	if point != "journal.append" {
		return nil
	}
	g.mu.Lock()
	g.appends++
	first := g.appends == 1
	g.mu.Unlock()
	if first {
		close(g.entered)
		<-g.open
	}
	return nil
}

// TestWritersShareAnAppend: who waits while another one writes is written
// together with the others that do, and who cannot wait any longer, be it who
// leads them, leaves nothing behind and takes nobody along.
func TestWritersShareAnAppend(t *testing.T) {
	g := gate{entered: make(chan struct{}), open: make(chan struct{})}
	dir := t.TempDir()
	j := open(t, dir, journal.Options{Namespace: here})
	must(t, j.Put(t.Context(), record(0))) // the header is written
	must(t, j.Close())
	j = open(t, dir, journal.Options{Namespace: here, Faults: g.at})

	var all sync.WaitGroup
	put := func(ctx context.Context, n int, want error) {
		all.Go(func() {
			err := j.Put(ctx, record(n))
			if !errors.Is(err, want) || want != nil && plugins.ClassOf(err) != plugins.ClassTransient {
				t.Errorf("record %d: %v", n, err)
			}
		})
	}
	put(t.Context(), 1, nil)
	<-g.entered
	leader, cancelLeader := context.WithCancel(t.Context())
	put(leader, 2, context.Canceled)
	journal.AwaitGathered(j, 1)
	member, cancelMember := context.WithCancel(t.Context())
	put(member, 3, context.Canceled)
	journal.AwaitGathered(j, 2)
	const others = 20
	for n := range others {
		put(t.Context(), 10+n, nil)
	}
	journal.AwaitGathered(j, 2+others)
	cancelMember()
	cancelLeader()
	journal.AwaitGathered(j, others) // under another leader
	close(g.open)
	all.Wait()
	if g.appends != 2 {
		t.Errorf("%d appends", g.appends)
	}
	c, err := journal.Read(dir)
	must(t, err)
	if got := len(c.Records); got != 2+others || names(c.Records) != names(j.All()) || len(c.Damaged) > 0 {
		t.Errorf("%d records: %s, damaged %v", got, names(c.Records), c.Damaged)
	}
	for _, n := range []int{2, 3} {
		if _, there := j.Get(record(n).Key); there {
			t.Errorf("record %d was given up and is there", n)
		}
	}
}
