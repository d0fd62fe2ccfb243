package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// maxHeaders bounds what a plugin sends as headers and trailers, its error
// texts among them.
const maxHeaders = 16 << 10

// job is one attempt with one file: copies of what it needs to know.
type job struct {
	socket     *socket // to whom the outcome belongs; not looked into
	path       string
	id         Identity
	generation uint64
	cur        *Instance
	prev       []Instance
	// early is until when a refused connection means that the server is about
	// to listen.
	early time.Time
}

// outcome is how a job ended.
type outcome struct {
	socket *socket
	id     Identity
	end    bool // of a job that ended instances, not of an attempt
	err    error
	// early: it may be that the server does not listen yet.
	early bool
	info  Info
	// registered is set if there is a new instance, conn after every success.
	// Where err is set too, the job was cut short: the plugin was not told.
	registered *Instance
	conn       *grpc.ClientConn
	// ended are the generations that were deregistered.
	ended []uint64
}

// link is the connection that is kept to a registered plugin.
type link struct {
	socket *socket
	cancel context.CancelFunc
	since  time.Time
}

func (r *run) startAttempt(ctx context.Context, s *socket, now time.Time) {
	r.generation++
	r.asking++
	j := job{socket: s, path: s.path, id: s.id, generation: r.generation, prev: slices.Clone(s.prev)}
	if s.cur != nil {
		cur := s.cur.clone()
		j.cur = &cur
	}
	// By the file's own time a socket that was left behind is told from one
	// that was just made; the time since we saw it guards against odd clocks.
	if now.Sub(s.id.Changed) < youth {
		j.early = s.seen.Add(youth)
	}
	s.next = time.Time{}
	if s.cur == nil {
		s.enter(Registering, now)
	}
	jctx, cancel := context.WithCancel(ctx)
	s.cancel, s.cut = cancel, false
	r.wg.Go(func() {
		o := r.attempt(jctx, j)
		select {
		case r.done <- o:
		case <-ctx.Done():
			if o.conn != nil {
				_ = o.conn.Close()
			}
		}
	})
}

// startEnd deregisters all instances of a path.
func (r *run) startEnd(ctx context.Context, s *socket) {
	s.retire()
	instances := s.prev
	s.prev = nil
	_, cancel := context.WithCancel(ctx)
	s.cancel, s.cut = cancel, false
	r.wg.Go(func() {
		for _, i := range instances {
			r.deregister(i)
		}
		select {
		case r.done <- outcome{socket: s, end: true}:
		case <-ctx.Done():
		}
	})
}

func (r *run) deregister(i Instance) {
	r.w.config.Log.V(1).Info("Plugin deregistered", "plugin", i.Name, "type", i.Type, "socket", i.Socket, "generation", i.Generation)
	r.w.config.Handlers[i.Type].Deregister(i.clone())
}

// finish enters the outcome of a job.
func (r *run) finish(ctx context.Context, o outcome, now time.Time) {
	s := o.socket
	s.cancel()
	s.cancel = nil
	if o.end {
		return
	}
	r.asking--
	ended := func(i Instance) bool { return slices.Contains(o.ended, i.Generation) }
	s.prev = slices.DeleteFunc(s.prev, ended)
	if s.cur != nil && ended(*s.cur) {
		s.cur = nil
	}
	switch {
	case s.gone || !s.id.Same(o.id): // it spoke to what is no more
		if o.registered != nil {
			s.prev = append(s.prev, *o.registered)
		}
		if o.conn != nil {
			_ = o.conn.Close()
		}
	case o.err == nil:
		r.succeeded(ctx, s, o, now)
	case s.cut: // and then the same file was there again
		if o.registered != nil {
			s.cur = o.registered
		}
		s.next = now
	default:
		r.failed(s, o, now)
	}
}

func (r *run) succeeded(ctx context.Context, s *socket, o outcome, now time.Time) {
	if o.registered != nil {
		s.cur = o.registered
	}
	s.info, s.lastError, s.attempts, s.quick, s.next = o.info, "", 0, 0, time.Time{}
	s.enter(Registered, now)
	s.unlink()
	lctx, cancel := context.WithCancel(ctx)
	l := &link{socket: s, cancel: cancel, since: now}
	s.link = l
	r.wg.Go(func() {
		defer cancel()
		for o.conn.GetState() == connectivity.Ready && o.conn.WaitForStateChange(lctx, connectivity.Ready) {
		}
		_ = o.conn.Close()
		select {
		case r.lost <- l:
		case <-lctx.Done():
		}
	})
}

func (r *run) failed(s *socket, o outcome, now time.Time) {
	s.attempts++
	s.lastError = bounded(o.err.Error())
	if o.info.Type != "" {
		s.info = o.info
	}
	if o.early {
		s.next = now.Add(min(noticePause<<min(s.quick, 5), 100*time.Millisecond))
		s.quick++
		return
	}
	s.failures++
	s.next = now.Add(r.w.config.backoff(s.failures))
	if errors.Is(o.err, ErrUnavailable) {
		s.enter(Stale, now)
	} else {
		s.enter(Failed, now)
	}
	r.w.config.Log.Error(errors.New(s.lastError), "Register plugin", "socket", s.path, "attempt", s.attempts, "nextTry", s.next)
}

// disconnected enters that the kept connection has ended.
func (r *run) disconnected(l *link, now time.Time) {
	s := l.socket
	if s.link != l {
		return
	}
	s.link = nil
	if now.Sub(l.since) >= steady {
		s.failures = 0
	}
	s.failures++
	s.next = now.Add(r.w.config.backoff(s.failures))
	s.lastError = "the connection to the registration socket was lost"
	s.enter(Stale, now)
	r.w.config.Log.V(1).Info("Connection to a registered plugin lost", "plugin", s.info.Name, "socket", s.path, "nextTry", s.next)
}

// attempt asks the plugin and registers it. ctx ends with the file.
func (r *run) attempt(ctx context.Context, j job) (o outcome) {
	o = outcome{socket: j.socket, id: j.id}
	leaving := j.prev
	raw, err := r.dial(ctx, j.path)
	if err != nil {
		o.err = err
		o.early = errors.Is(err, ErrUnavailable) && r.now().Before(j.early)
	} else {
		o.err = r.ask(ctx, j, raw, &o)
		if j.cur != nil && o.info.Type != "" && !o.info.equal(j.cur.Info) {
			leaving = append(leaving, *j.cur)
		}
	}
	if o.err != nil && (o.early || ctx.Err() != nil) {
		return o // it is not known yet what comes instead
	}
	for _, i := range leaving {
		r.deregister(i)
		o.ended = append(o.ended, i.Generation)
	}
	return o
}

func (r *run) dial(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, r.w.config.DialTimeout)
	defer cancel()
	return DialSocket(ctx, path)
}

// ask has the conversation over a connection, which it closes after a failure.
func (r *run) ask(ctx context.Context, j job, raw net.Conn, o *outcome) error {
	conn, err := r.client(raw)
	if err != nil {
		_ = raw.Close()
		return fmt.Errorf("connect to %s: %w", j.path, err)
	}
	plugin := registerapi.NewRegistrationClient(conn)
	o.info, err = r.getInfo(ctx, plugin, j.path)
	if err == nil {
		err = r.register(ctx, j, plugin, o)
	}
	if err != nil {
		_ = conn.Close()
		_ = raw.Close()
		return err
	}
	o.conn = conn
	return nil
}

// client speaks gRPC over raw, and only over that: where it ends, so does the
// client's use.
func (r *run) client(raw net.Conn) (*grpc.ClientConn, error) {
	once := make(chan net.Conn, 1)
	once <- raw
	return grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(r.w.config.MaxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: r.w.config.CallTimeout}),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, errors.New("the connection was lost")
			}
		}))
}

func (r *run) getInfo(ctx context.Context, plugin registerapi.RegistrationClient, path string) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, r.w.config.CallTimeout)
	defer cancel()
	answer, err := plugin.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return Info{}, fmt.Errorf("ask the plugin for its info: %w", said(err))
	}
	info := Info{Type: answer.GetType(), Name: answer.GetName(), Endpoint: answer.GetEndpoint(), Versions: answer.GetSupportedVersions()}
	if info.Endpoint == "" {
		info.Endpoint = path
	}
	if err := info.Check(); err != nil {
		r.tell(ctx, plugin, err) //nolint:errcheck // it is refused either way
		return Info{}, err
	}
	return info, nil
}

// register hands the plugin to its handler and tells it the result.
func (r *run) register(ctx context.Context, j job, plugin registerapi.RegistrationClient, o *outcome) error {
	if j.cur != nil && j.cur.equal(o.info) {
		return r.tell(ctx, plugin, nil)
	}
	instance := Instance{Info: o.info, Socket: j.path, File: j.id, Generation: j.generation}
	if err := r.handOver(ctx, instance); err != nil {
		r.tell(ctx, plugin, err) //nolint:errcheck // it is refused either way
		return err
	}
	if err := r.tell(ctx, plugin, nil); err != nil {
		if ctx.Err() != nil { // its file has gone: it ends like one that was told
			o.registered = &instance
		} else {
			r.deregister(instance)
		}
		return err
	}
	r.w.config.Log.Info("Plugin registered", "plugin", instance.Name, "type", instance.Type, "socket", j.path, "endpoint", instance.Endpoint, "generation", j.generation)
	o.registered = &instance
	return nil
}

func (r *run) handOver(ctx context.Context, instance Instance) error {
	handler := r.w.config.Handlers[instance.Type]
	if handler == nil {
		types := slices.Sorted(maps.Keys(r.w.config.Handlers))
		return fmt.Errorf("plugins of type %s are not taken here, only those of type: %s", quoted(instance.Type), strings.Join(types, ", "))
	}
	if err := handler.Validate(instance.clone().Info); err != nil {
		return fmt.Errorf("validate plugin %s: %w", instance.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.w.config.RegisterTimeout)
	defer cancel()
	if err := handler.Register(ctx, instance.clone()); err != nil {
		return fmt.Errorf("register plugin %s: %w", instance.Name, err)
	}
	return nil
}

// tell notifies the plugin of success, or of the reason for refusing it.
func (r *run) tell(ctx context.Context, plugin registerapi.RegistrationClient, refusal error) error {
	ctx, cancel := context.WithTimeout(ctx, r.w.config.CallTimeout)
	defer cancel()
	result := &registerapi.RegistrationStatus{PluginRegistered: refusal == nil}
	if refusal != nil {
		result.Error = bounded(refusal.Error())
	}
	if _, err := plugin.NotifyRegistrationStatus(ctx, result); err != nil {
		return fmt.Errorf("tell the plugin that it is registered: %w", said(err))
	}
	return nil
}

// said makes a plugin's error fit to be shown, and keeps its code.
func said(err error) error {
	s := status.Convert(err)
	return fmt.Errorf("%s: %s", s.Code(), bounded(s.Message()))
}
