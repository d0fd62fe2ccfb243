package registration

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// Config is what a [Watcher] needs. Dir is required, everything else has a
// default, named at the field.
type Config struct {
	// Dir is the absolute path of the watched folder, the kubelet's
	// <root>/plugins_registry. While it does not exist it is waited for.
	Dir string
	// Create makes the folder, with mode 0750, whenever it is missing.
	Create bool
	// Handlers take plugins by their type. A plugin of another type is told
	// which types there are.
	Handlers map[string]Handler
	// Log gets registrations and failures; the zero value discards.
	Log logr.Logger
	// Clock is for tests; nil is the real one. It steers looks and attempts;
	// the deadlines of calls are real.
	Clock clock.Clock
	// RescanPeriod is the time between looks at the folder when there is no
	// notice: 10 s.
	RescanPeriod time.Duration
	// DialTimeout bounds connecting to a socket: 1 s. CallTimeout bounds each
	// call to a plugin: 5 s. RegisterTimeout bounds a Register of a handler: 2
	// min.
	DialTimeout, CallTimeout, RegisterTimeout time.Duration
	// BackoffMin and BackoffMax are the pauses after a first and a repeated
	// failure: 50 ms, so that a plugin which fails a few times while it starts is
	// there within two seconds, and 2 min. Up to a fifth is taken off by chance.
	BackoffMin, BackoffMax time.Duration
	// MaxParallel is how many sockets are asked at a time: 16.
	MaxParallel int
	// MaxSockets and MaxFolders are how many of them are looked at: 1024 each.
	// What is above is ignored and counted in the status; a socket that is
	// known is never pushed out by others.
	MaxSockets, MaxFolders int
	// MaxAnswer is how many bytes an answer of a plugin may have: 64 KiB.
	MaxAnswer int
}

// withDefaults returns a copy with nothing missing, or says what is.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("registration: no folder to watch (Dir)")
	}
	if !filepath.IsAbs(c.Dir) {
		return c, fmt.Errorf("registration: the folder %q is not an absolute path", c.Dir)
	}
	c.Dir = filepath.Clean(c.Dir)
	c.Handlers = maps.Clone(c.Handlers)
	for kind, h := range c.Handlers {
		if kind == "" || h == nil {
			return c, fmt.Errorf("registration: no type or no handler at %q", kind)
		}
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log.GetSink() == nil {
		c.Log = logr.Discard()
	}
	orDefault(&c.RescanPeriod, 10*time.Second)
	orDefault(&c.DialTimeout, time.Second)
	orDefault(&c.CallTimeout, 5*time.Second)
	orDefault(&c.RegisterTimeout, 2*time.Minute)
	orDefault(&c.BackoffMin, 50*time.Millisecond)
	orDefault(&c.BackoffMax, 2*time.Minute)
	orDefault(&c.MaxParallel, 16)
	orDefault(&c.MaxSockets, 1024)
	orDefault(&c.MaxFolders, 1024)
	orDefault(&c.MaxAnswer, 64<<10)
	c.BackoffMax = max(c.BackoffMin, c.BackoffMax)
	return c, nil
}

func orDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// backoff is the pause after so many failures in a row.
func (c *Config) backoff(failures int) time.Duration {
	pause := c.BackoffMin
	for range failures - 1 {
		if pause >= c.BackoffMax/2 {
			pause = c.BackoffMax
			break
		}
		pause *= 2
	}
	return pause - time.Duration(rand.Int64N(int64(pause)/5+1)) //nolint:gosec // spreads attempts, guards nothing
}
