// Package registrationtest provides a plugin that speaks the registration
// protocol v1 on a socket and does nothing else: for tests of what watches for
// plugins, and as the pattern for the registering part of a real one. It is not
// a CSI driver.
package registrationtest

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Info is what the plugin says about itself. It converts to and from the type of
// that name in package registration.
type Info struct {
	Type, Name, Endpoint string
	Versions             []string
}

// Notice is what the plugin was told about its registration.
type Notice struct {
	Registered bool
	Error      string
}

// Plugin is a running plugin. Its methods are safe for concurrent use.
type Plugin struct {
	registerapi.UnimplementedRegistrationServer

	path   string
	server *grpc.Server
	served chan struct{}
	told   chan Notice
	asking chan struct{}

	mu         sync.Mutex
	info       Info
	asked      int
	failInfo   failures
	failNotice failures
	held       chan struct{}
}

// failures are the next n answers.
type failures struct {
	n   int
	err error
}

func (f *failures) next() error {
	if f.n == 0 {
		return nil
	}
	f.n--
	return f.err
}

// Start listens at path and answers with info, an empty endpoint included. As
// real plugins do, it first removes a socket that is there. On Linux path may
// be longer than a socket address. Stop or Kill ends the plugin.
func Start(path string, info Info) (*Plugin, error) {
	return start(path, info, func(*Plugin) {})
}

// StartHeld is Start, with Hold before the first question can come.
func StartHeld(path string, info Info) (*Plugin, error) {
	return start(path, info, (*Plugin).Hold)
}

func start(path string, info Info, prepare func(*Plugin)) (*Plugin, error) {
	if old, err := os.Lstat(path); err == nil && old.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := Listen(path)
	if err != nil {
		return nil, err
	}
	p := newPlugin(path, info)
	prepare(p)
	p.serve(listener)
	return p, nil
}

// Serve is Start with a listener that the caller has made. The plugin closes
// it; path is what Stop removes.
func Serve(listener net.Listener, path string, info Info) *Plugin {
	p := newPlugin(path, info)
	p.serve(listener)
	return p
}

func newPlugin(path string, info Info) *Plugin {
	return &Plugin{
		path: path, info: info, server: grpc.NewServer(),
		served: make(chan struct{}), told: make(chan Notice, 1<<12), asking: make(chan struct{}, 1),
	}
}

func (p *Plugin) serve(listener net.Listener) {
	registerapi.RegisterRegistrationServer(p.server, p)
	go func() {
		defer close(p.served)
		_ = p.server.Serve(listener)
	}()
}

// Listen binds a unix socket that is not removed when it is closed.
func Listen(path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// Stop removes the socket and ends the plugin.
func (p *Plugin) Stop() {
	_ = os.Remove(p.path)
	p.Kill()
}

// Kill ends the plugin and leaves its socket, as SIGKILL does.
func (p *Plugin) Kill() {
	p.server.Stop()
	<-p.served
}

// Path returns where the plugin was started.
func (p *Plugin) Path() string { return p.path }

// SetInfo changes what the plugin answers from now on.
func (p *Plugin) SetInfo(info Info) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info = info
}

// FailInfo has the next n calls of GetInfo fail with err.
func (p *Plugin) FailInfo(n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failInfo = failures{n, err}
}

// FailNotice has the next n calls of NotifyRegistrationStatus fail with err.
// They do not count as told.
func (p *Plugin) FailNotice(n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failNotice = failures{n, err}
}

// Hold lets every GetInfo wait, until Release or its end.
func (p *Plugin) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = make(chan struct{})
	}
}

// Release ends Hold.
func (p *Plugin) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

// Asked returns how many calls of GetInfo there were.
func (p *Plugin) Asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// Asking delivers when the plugin is asked; questions that nobody has taken note
// of are one.
func (p *Plugin) Asking() <-chan struct{} { return p.asking }

// Told delivers what the plugin was told, in order. Notices beyond 4,096 that
// nobody took are lost.
func (p *Plugin) Told() <-chan Notice { return p.told }

// GetInfo implements the protocol.
func (p *Plugin) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	p.mu.Lock()
	p.asked++
	err, held, info := p.failInfo.next(), p.held, p.info
	p.mu.Unlock()
	select {
	case p.asking <- struct{}{}:
	default:
	}
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, err
	}
	return &registerapi.PluginInfo{
		Type: info.Type, Name: info.Name, Endpoint: info.Endpoint, SupportedVersions: slices.Clone(info.Versions),
	}, nil
}

// NotifyRegistrationStatus implements the protocol.
func (p *Plugin) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	p.mu.Lock()
	err := p.failNotice.next()
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case p.told <- Notice{Registered: s.GetPluginRegistered(), Error: s.GetError()}:
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
