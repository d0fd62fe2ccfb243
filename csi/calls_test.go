package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/plugins"
)

// rpc makes calls of a function.
func rpc(ctx context.Context, d *driver, m method, volume string, f func(context.Context) error) error {
	_, err := call(ctx, d, m, volume, &csipb.NodePublishVolumeRequest{Secrets: map[string]string{"p": theSecret}},
		func(ctx context.Context, _ *csipb.NodePublishVolumeRequest, _ ...grpc.CallOption) (*csipb.NodePublishVolumeResponse, error) {
			return nil, f(ctx)
		})
	return err
}

// TestOneCallForAVolume runs many calls: those of one volume go one after
// another, over instances and connections, those of different volumes side by
// side.
func TestOneCallForAVolume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := newCalls(nil, false)
		old, now := &driver{name: fakeName, calls: shared, generation: 1}, &driver{name: fakeName, calls: shared, generation: 2}
		var busy [3]atomic.Int64
		var all, most atomic.Int64
		var wg sync.WaitGroup
		for i := range 60 {
			volume := i % 3
			wg.Go(func() {
				d := old
				if i%2 == 0 {
					d = now
				}
				m := []method{nodePublish, nodeStage, nodeUnpublish, nodeStats}[i%4]
				if err := rpc(t.Context(), d, m, fmt.Sprint("v", volume), func(context.Context) error {
					if busy[volume].Add(1) != 1 {
						t.Error("two calls for a volume")
					}
					most.Store(max(most.Load(), all.Add(1)))
					time.Sleep(time.Second)
					all.Add(-1)
					busy[volume].Add(-1)
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 3 {
			t.Errorf("at most %d calls at a time", most.Load())
		}
		if len(shared.busy) != 0 {
			t.Errorf("%d volumes are remembered", len(shared.busy))
		}
	})
}

// TestParallelPublishes is for drivers that bear that.
func TestParallelPublishes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &driver{name: fakeName, calls: newCalls(nil, true)}
		var shared, alone, most atomic.Int64
		run := func(methods ...method) time.Duration {
			began := time.Now()
			var wg sync.WaitGroup
			for _, m := range methods {
				wg.Go(func() {
					_ = rpc(t.Context(), d, m, "v", func(context.Context) error {
						mine := &alone
						if m == nodePublish || m == nodeUnpublish {
							mine = &shared
						}
						if n := mine.Add(1); mine == &alone && (n > 1 || shared.Load() > 0) || mine == &shared && alone.Load() > 0 {
							t.Error("a call that stands alone has company")
						}
						most.Store(max(most.Load(), shared.Load()))
						time.Sleep(time.Second)
						mine.Add(-1)
						return nil
					})
				})
			}
			wg.Wait()
			return time.Since(began)
		}
		if took := run(nodePublish, nodePublish, nodeUnpublish, nodePublish); took != time.Second || most.Load() != 4 {
			t.Errorf("publishes took %v, %d at a time", took, most.Load())
		}
		run(nodePublish, nodeStage, nodePublish, nodeStats, nodeUnpublish, nodeExpand, nodePublish)
	})
}

// A call that only reads, and hangs, does not hold up one that changes the
// volume.
func TestReadsGiveWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &driver{name: fakeName, calls: newCalls(nil, false)}
		var wg sync.WaitGroup
		wg.Go(func() {
			err := rpc(t.Context(), d, nodeStats, "v", func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if err == nil || plugins.ClassOf(err) != plugins.ClassTransient {
				t.Errorf("the read ended with %v", err)
			}
		})
		synctest.Wait()
		began := time.Now()
		if err := rpc(t.Context(), d, nodeUnpublish, "v", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != readGrace {
			t.Errorf("it waited %v", waited)
		}
		wg.Wait()
	})
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		times := func(driver, method string) time.Duration {
			if driver == fakeName && method == "NodeStageVolume" {
				return time.Hour
			}
			return -1
		}
		for m, want := range map[method]time.Duration{nodeStage: time.Hour, nodePublish: DefaultTimeout} {
			began := time.Now()
			d := &driver{name: fakeName, calls: newCalls(times, false)}
			err := rpc(t.Context(), d, m, "v", func(ctx context.Context) error {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			})
			if took := time.Since(began); took != want || plugins.ClassOf(err) != plugins.ClassUncertain || answered(err) != codes.DeadlineExceeded {
				t.Errorf("%s: %v after %v", m, err, took)
			}
		}
	})
}

// TestCallsThatAreNotMade leave nothing behind, and say so.
func TestCallsThatAreNotMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &driver{name: fakeName, calls: newCalls(nil, false)}
		never := func(context.Context) error {
			t.Error("it was made")
			return nil
		}
		why := errors.New("the pod has gone")
		ended, end := context.WithCancelCause(t.Context())
		end(why)
		if err := rpc(ended, d, nodeStage, "v", never); plugins.ClassOf(err) != plugins.ClassTransient || !errors.Is(err, why) {
			t.Errorf("an ended context: %v", err)
		}
		goOn := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = rpc(t.Context(), d, nodeStage, "v", func(context.Context) error {
				<-goOn
				return nil
			})
		})
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		wg.Go(func() {
			if err := rpc(ctx, d, nodeStage, "v", never); plugins.ClassOf(err) != plugins.ClassTransient || !errors.Is(err, why) {
				t.Errorf("one that waits: %v", err)
			}
		})
		synctest.Wait()
		cancel(why)
		synctest.Wait()
		close(goOn)
		wg.Wait()
		if len(d.calls.busy) != 0 {
			t.Errorf("%d volumes are remembered", len(d.calls.busy))
		}
		waits := plugins.WaitFor(socketRef(fakeName), errLost)
		err := rpc(t.Context(), d, nodeStage, "v", func(context.Context) error {
			return fmt.Errorf("an interceptor: %w", &unsentError{waits})
		})
		if plugins.ClassOf(err) != plugins.ClassWaiting || answered(err) != codes.Unknown {
			t.Errorf("one that was not sent: %v", err)
		}
	})
}

func TestContradictionsAreReported(t *testing.T) {
	t.Parallel()
	told := 0
	d := &driver{name: fakeName, calls: newCalls(nil, false), outdated: func() { told++ }}
	answer := func(code codes.Code) func(context.Context) error {
		return func(context.Context) error { return status.Error(code, "no: "+theSecret) }
	}
	for _, c := range []codes.Code{codes.Internal, codes.NotFound, codes.Unimplemented} {
		err := rpc(t.Context(), d, nodeStage, "v", answer(c))
		if answered(err) != c || strings.Contains(err.Error(), theSecret) {
			t.Error(err)
		}
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}
