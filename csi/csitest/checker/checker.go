package checker

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
)

// ServiceAccountTokens is the well-known key under which an orchestrator passes
// service account tokens, in volume_context or in secrets. Its value may change
// from call to call and may be secret although volume_context is a plain field.
const ServiceAccountTokens = "csi.storage.k8s.io/serviceAccount.tokens"

// Options say what the checker cannot learn by watching. The zero value fits
// an orchestrator whose every call to the driver passes by.
type Options struct {
	// Parallel allows NodePublishVolume and NodeUnpublishVolume of one volume
	// to different targets at the same time, for drivers that allow it.
	Parallel bool
	// AttachUnseen: the attach step is done where its calls do not pass by
	// here, or left out by choice. Rules that need it are not checked.
	AttachUnseen bool
	// OtherNodes: the Controller service seen here serves nodes whose
	// NodeGetInfo does not pass by here.
	OtherNodes bool
	// NodeIDs are ids of this node known beforehand.
	NodeIDs []string
	// Filesystem makes the checker look at the paths in requests. Set it only
	// where it runs in the mount namespace of the driver.
	Filesystem bool

	// Node, Controller and Plugin are answers that the driver gave before the
	// checker began to watch; nil where the orchestrator asks past it.
	Node       *csi.NodeGetCapabilitiesResponse
	Controller *csi.ControllerGetCapabilitiesResponse
	Plugin     *csi.GetPluginCapabilitiesResponse

	// DriverName is the name that PluginInfoFirst expects; empty for any.
	DriverName string
	// MaxCapabilityCalls is how often each of the capability RPCs may be
	// called per start of the driver or of the orchestrator; 0 for any number.
	MaxCapabilityCalls int
	// VolatileContext are prefixes of volume_context keys that may differ
	// between the calls for one volume, as information about a pod does. Nil
	// means "csi.storage.k8s.io/".
	VolatileContext []string
	// Canaries are values that must stand in secret fields only, as if a
	// request had carried them there before. Those under 4 bytes are ignored.
	Canaries []string

	// Enable switches rules on that are checked on request only.
	Enable []Rule
	// Disable switches rules off.
	Disable []Rule
	// MaxViolations bounds how many are kept; 0 means 1000. More are counted
	// but not kept.
	MaxViolations int
	// OnViolation, if not nil, is called for each violation, kept or not, from
	// the goroutine of the call and without a lock held.
	OnViolation func(Violation)
}

// Violation is one breach of a rule.
type Violation struct {
	// Rule is the id of the rule.
	Rule Rule
	// Method is the RPC without its service, such as NodePublishVolume.
	Method string
	// VolumeID is the volume, empty where none is concerned.
	VolumeID string
	// Text says what was wrong and what to do instead. It holds no secrets.
	Text string
	// Section is the section of the CSI specification.
	Section string
}

// String returns the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s of volume %q: %s (CSI specification: %s)", v.Rule, v.Method, v.VolumeID, v.Text, v.Section)
}

// TB is the part of testing.TB that the checker uses.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Checker is the state machine. All methods may be called concurrently.
type Checker struct {
	opts  Options
	rules map[Rule]RuleInfo
	on    map[Rule]bool

	mu sync.Mutex // guards what follows; never held during I/O or callbacks
	model
	violations []Violation
	dropped    int
}

// New returns a checker that has seen nothing yet.
func New(opts Options) *Checker {
	if opts.MaxViolations <= 0 {
		opts.MaxViolations = 1000
	}
	if opts.VolatileContext == nil {
		opts.VolatileContext = []string{"csi.storage.k8s.io/"}
	}
	c := &Checker{opts: opts, rules: map[Rule]RuleInfo{}, on: map[Rule]bool{}}
	for _, r := range Rules() {
		c.rules[r.Rule] = r
		switch r.When {
		case OnRequest:
			c.on[r.Rule] = slices.Contains(opts.Enable, r.Rule)
		case WithFilesystem:
			c.on[r.Rule] = opts.Filesystem
		case Always, AtEnd:
			c.on[r.Rule] = true
		}
		if slices.Contains(opts.Disable, r.Rule) {
			c.on[r.Rule] = false
		}
	}
	c.model = newModel(opts)
	return c
}

// UnaryServer returns the interceptor for the driver's server. It must come
// first in the chain.
func (c *Checker) UnaryServer() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		call := c.Begin(ctx, info.FullMethod, req)
		var resp any
		// A handler that panics gave no answer.
		err := errNoAnswer
		defer func() { call.End(resp, err) }()
		resp, err = handler(ctx, req)
		return resp, err
	}
}

// UnaryClient returns the interceptor for the orchestrator's connection. It
// must come last in the chain, after interceptors that repeat calls, so that it
// sees each attempt.
func (c *Checker) UnaryClient() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		call := c.begin(ctx, method, req, true)
		err := invoker(ctx, method, req, reply, cc, opts...)
		call.end(reply, err)
		return err
	}
}

// Call is a call in flight.
type Call struct {
	c       *Checker
	method  string
	req     proto.Message
	volume  string // volume id, if the request has one
	subject string // what may have one call in flight
	target  string // of publish and unpublish
	gone    func() error

	exact bool     // begins and ends when the orchestrator says so
	conn  net.Addr // one value per connection, if known

	settled  bool
	overlaps []*Call   // others found in flight that are not yet judged
	created  *record   // made by this call
	undone   []undoing // being undone by this call
	found    []Violation
	quiet    map[Rule]bool // reported for this call already
}

// Begin tells that a request was sent. fullMethod is the gRPC name, such as
// "/csi.v1.Node/NodePublishVolume"; ctx is the one of the call, whose end means
// that the orchestrator waits no longer. The request must not change until End.
// Methods of other services give a call whose End does nothing.
func (c *Checker) Begin(ctx context.Context, fullMethod string, req any) *Call {
	return c.begin(ctx, fullMethod, req, false)
}

func (c *Checker) begin(ctx context.Context, fullMethod string, req any, exact bool) *Call {
	service, method, ok := splitMethod(fullMethod)
	msg, isProto := req.(proto.Message)
	if !ok || !isProto {
		return nil
	}
	k := &Call{c: c, method: method, req: msg, gone: ctx.Err, quiet: map[Rule]bool{}, exact: exact, conn: connection(ctx)}
	k.identify()
	fs := c.look(msg)

	c.mu.Lock()
	c.counts[method]++
	c.checkOverlap(k)
	c.learnSecrets(k)
	c.checkFields(k)
	c.checkService(k, service)
	c.checkRetry(k)
	c.beginState(k, fs)
	found := k.take()
	c.mu.Unlock()
	c.tell(found)
	return k
}

// End tells that the call ended with this answer. A second End does nothing.
// An answer that came after the context of the call had ended counts as lost.
func (k *Call) End(resp any, err error) {
	if k == nil {
		return
	}
	if err == nil {
		err = k.gone()
	}
	k.end(resp, err)
}

// connection returns what identifies the connection of a call at the server:
// gRPC keeps one address per connection, and compares here as a pointer.
func connection(ctx context.Context) net.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	switch p.Addr.(type) {
	case *net.UnixAddr, *net.TCPAddr:
		return p.Addr
	}
	return nil
}

func (k *Call) end(resp any, err error) {
	if k == nil {
		return
	}
	c := k.c
	c.mu.Lock()
	c.settleAbandoned(k.subject, k)
	c.settle(k, resp, err)
	found := k.take()
	c.mu.Unlock()
	c.tell(found)
}

func (k *Call) take() []Violation {
	found := k.found
	k.found = nil
	return found
}

// report notes a violation of k, once per rule and call.
func (c *Checker) report(k *Call, rule Rule, format string, args ...any) {
	if !c.on[rule] || k.quiet[rule] {
		return
	}
	k.quiet[rule] = true
	k.found = append(k.found, c.note(Violation{
		Rule: rule, Method: k.method, VolumeID: k.volume, Text: fmt.Sprintf(format, args...),
	}))
}

// note completes a violation and keeps it.
func (c *Checker) note(v Violation) Violation {
	v = c.complete(v)
	if len(c.violations) < c.opts.MaxViolations {
		c.violations = append(c.violations, v)
	} else {
		c.dropped++
	}
	return v
}

func (c *Checker) complete(v Violation) Violation {
	v.Section = c.rules[v.Rule].Section
	v.Text = c.secrets.redact(v.Text)
	v.VolumeID = c.secrets.redact(v.VolumeID)
	return v
}

func (c *Checker) tell(found []Violation) {
	if c.opts.OnViolation == nil {
		return
	}
	for _, v := range found {
		c.opts.OnViolation(v)
	}
}

// Violations returns what was found so far, oldest first.
func (c *Checker) Violations() []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

// Dropped returns how many violations were found beyond
// [Options.MaxViolations].
func (c *Checker) Dropped() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// Leftovers returns what is attached, staged, published, uncertain or in flight
// now, as violations of LeftBehind, LeftUncertain and LeftInFlight. They are
// not added to [Checker.Violations].
func (c *Checker) Leftovers() []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leftovers()
}

// Verify reports each violation so far by t.Errorf.
func (c *Checker) Verify(t TB) {
	t.Helper()
	for _, v := range c.Violations() {
		t.Errorf("%v", v)
	}
	if n := c.Dropped(); n > 0 {
		t.Errorf("and %d more violations", n)
	}
}

// VerifyClean does what [Checker.Verify] does and reports what is left over:
// call it when everything was torn down.
func (c *Checker) VerifyClean(t TB) {
	t.Helper()
	c.Verify(t)
	for _, v := range c.Leftovers() {
		t.Errorf("%v", v)
	}
}

// Counts returns how often each RPC was called, by its name without the
// service. RPCs that were never called are absent.
func (c *Checker) Counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// ResetCounts sets the counters of [Checker.Counts] to zero.
func (c *Checker) ResetCounts() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
}

// Reset forgets everything, as if the checker were new. Calls in flight are
// forgotten too.
func (c *Checker) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropFlight(nil)
	c.model = newModel(c.opts)
	c.violations, c.dropped = nil, 0
}

// Restarted tells that the driver was restarted: calls in flight have an
// unknown result, capabilities may be asked again. Since requests may have been
// lost with the old process, an undo of something unseen is no fault for the
// volumes that exist now.
func (c *Checker) Restarted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restart()
}

// COrestarted tells that the orchestrator was restarted and knows only what it
// had on disk. The checker treats it as [Checker.Restarted] does.
func (c *Checker) COrestarted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restart()
}

// NodeRebooted tells that the node was rebooted: nothing is staged or published
// any more, attached volumes still are.
func (c *Checker) NodeRebooted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restart()
	for _, v := range c.volumes {
		for _, r := range v.onNode() {
			c.drop(r)
		}
	}
}

func (c *Checker) restart() {
	c.dropFlight(errNoAnswer)
	clear(c.asked)
	c.probed, c.named, c.blamedUse = false, false, false
	c.unimplemented.clear()
	for _, v := range c.volumes {
		v.recovered = true
	}
}

// splitMethod splits "/csi.v1.Node/NodeStageVolume".
func splitMethod(full string) (service, method string, ok bool) {
	rest, ok := strings.CutPrefix(full, "/csi.v1.")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}
