package csinode_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/plugins"
)

// registering has drivers register in the root's folder instead of being known
// by an endpoint.
func registering(s settings, r **rig) settings {
	driver := s.driver
	s.driver = func(c *csitest.Config) {
		if c.Dir == "" {
			return // only its capabilities are asked for
		}
		registry := filepath.Join(filepath.Dir(c.Dir), "root", "plugins_registry")
		c.Sockets.Registration = filepath.Join(registry, "one-reg.sock")
		_ = os.MkdirAll(registry, 0o750)
		if driver != nil {
			driver(c)
		}
	}
	s.drivers = func(c *csi.DriversConfig) { c.Endpoints = nil }
	s.csi = func(c *csi.Config) {
		w, err := registration.New(registration.Config{
			Dir: c.Host.Layout.RegistryDir(), Handlers: map[string]registration.Handler{registration.CSIPlugin: c.Drivers},
		})
		if err != nil {
			panic(err)
		}
		c.Background = []plugins.Runner{w}
	}
	_ = r
	return s
}

// The life of a driver's registration: a socket of a driver that died, the
// driver itself, its next instance beside it, the end of the first, a restart
// behind the same path, and one that answers only after a while. Pods get their
// volumes through whichever lives, and the manager is never restarted.
func TestRegistrationLifeCycle(t *testing.T) {
	t.Parallel()
	r := newRig(t, registering(settings{unwatched: true, driver: func(c *csitest.Config) {
		staged(c)
		// What a driver that was killed has left behind.
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Sockets.Registration, Net: "unix"})
		if err == nil {
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		}
	}}, nil))
	pods := 0
	mounts := func(when string) {
		t.Helper()
		pods++
		name := "v" + when
		r.volume(name)
		r.up(podOf(when, name))
	}
	registered := func(n int) {
		t.Helper()
		r.until("it is registered", func() bool {
			list := r.driver.Registrations()
			return len(list) >= n && list[len(list)-1].Registered
		})
	}
	registered(1)
	mounts("first")

	second := csitest.Sockets{
		Endpoint:     filepath.Join(r.dir, "driver", "second.sock"),
		Registration: filepath.Join(r.root, "plugins_registry", "two-reg.sock"),
	}
	stop, err := r.driver.ServeAlso(r.ctx, second)
	r.must(err)
	r.until("both instances are known", func() bool { return len(r.drivers.Status()[0].Instances) == 2 })
	mounts("both")
	calls := r.driver.Calls()
	if last := calls[len(calls)-1]; last.Endpoint != second.Endpoint {
		t.Errorf("the newer instance was not used: %s", last.Endpoint)
	}
	r.must(os.Remove(filepath.Join(r.root, "plugins_registry", "one-reg.sock")))
	r.until("the first one is gone", func() bool { return len(r.drivers.Status()[0].Instances) == 1 })
	mounts("second-only")
	r.must(stop())

	r.must(r.driver.Restart(r.ctx))
	r.until("the restarted one is in use", func() bool {
		s := r.drivers.Status()
		return len(s) == 1 && slices.ContainsFunc(s[0].Instances, func(i csi.InstanceStatus) bool {
			return i.Endpoint == r.driver.Endpoint() && i.State == csi.DriverReady
		})
	})
	mounts("restarted")

	r.driver.Script("GetInfo", csitest.Fault{Times: 5, Code: codes.Unavailable})
	r.must(r.driver.Restart(r.ctx))
	n := len(r.driver.Registrations())
	registered(n + 1)
	mounts("late")
}

// A pod whose driver is not there says what is there and where drivers are
// looked for, and gets its volume when the driver comes.
func TestDriverThatComesLater(t *testing.T) {
	t.Parallel()
	r := newRig(t, registering(settings{driver: staged}, nil))
	r.must(r.driver.Stop())
	r.until("it is gone", func() bool {
		s := r.drivers.Status()
		return len(s) == 0 || len(s[0].Instances) == 0
	})
	r.checker.Restarted()
	r.volume("data")
	pod := podOf("one", "data")
	r.add(pod)
	r.until("the pod is told", func() bool {
		s, _ := r.manager.Status(pod)
		return len(s.Volumes) == 1 && s.Volumes[0].Err != nil && strings.Contains(s.Volumes[0].Err.Error(), driverName) && s.Volumes[0].Failure == "waiting"
	})
	r.must(r.driver.Start(r.ctx))
	began := time.Now()
	r.ready(pod)
	t.Logf("ready %v after the driver's start", time.Since(began))
}
