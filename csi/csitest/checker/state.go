package checker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// errNoAnswer is the result of a call whose answer will never come. It is no
// gRPC status, hence UNKNOWN.
var errNoAnswer = errors.New("no answer")

// step is what a record says of a volume.
type step string

const (
	attached  step = "attached to node"
	staged    step = "staged at"
	published step = "published at"
)

// record says that a volume is attached to a node, staged or published at a
// path.
type record struct {
	volume  *volume
	step    step
	key     string        // node id or path
	req     proto.Message // without secrets
	certain bool          // false: no answer that says so, or an undo began
	// contexts are the publish contexts that ControllerPublishVolume returned
	// last, for attached; the driver may have changed its mind.
	contexts []map[string]string
}

func (r *record) String() string { return fmt.Sprintf("%s %q", r.step, r.key) }

// way returns the call that undoes the record.
func (r *record) way() string {
	switch r.step {
	case attached:
		return "ControllerUnpublishVolume"
	case staged:
		return "NodeUnstageVolume"
	default:
		return "NodeUnpublishVolume"
	}
}

// volume is what is known of a volume of which anything is known.
type volume struct {
	id                          string
	attached, staged, published map[string]*record
	// recovered: requests may have been lost unseen since this volume was
	// first seen.
	recovered bool
	// expandRefused: NodeExpandVolume said FAILED_PRECONDITION, and nothing
	// changed since.
	expandRefused bool
}

func (v *volume) records(s step) map[string]*record {
	switch s {
	case attached:
		return v.attached
	case staged:
		return v.staged
	default:
		return v.published
	}
}

// onNode returns what is staged and published, in a stable order, the
// published first.
func (v *volume) onNode() []*record {
	return append(sorted(v.published), sorted(v.staged)...)
}

func (v *volume) all() []*record { return append(v.onNode(), sorted(v.attached)...) }

func sorted(m map[string]*record) []*record {
	list := make([]*record, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[key])
	}
	return list
}

// isCertain tells whether one of the records is certain.
func isCertain(m map[string]*record) bool {
	for _, r := range m {
		if r.certain {
			return true
		}
	}
	return false
}

// undoing is a record that a call undoes, with what it was before.
type undoing struct {
	record     *record
	wasCertain bool
}

// model is everything learned.
type model struct {
	caps    capabilities
	volumes map[string]*volume
	owners  map[string]*record // by path, what is staged or published there
	flight  map[string][]*Call // by subject
	counts  map[string]int
	asked   map[string]int // capability calls since the last restart
	secrets *secrets

	nodeIDs       *recent[bool]
	created       *recent[map[string]string] // volume_context by volume
	expanded      *recent[bool]              // volumes that the controller expanded
	targets       *recent[bool]              // volume and target path of each publish
	unimplemented *recent[bool]              // method and volume
	probed, named bool
	blamedUse     bool // ProbeFirst and PluginInfoFirst are reported once per start
}

func newModel(opts Options) model {
	m := model{
		volumes: map[string]*volume{}, owners: map[string]*record{}, flight: map[string][]*Call{},
		counts: map[string]int{}, asked: map[string]int{}, secrets: newSecrets(opts.Canaries),
		nodeIDs: newRecent[bool](), created: newRecent[map[string]string](), expanded: newRecent[bool](),
		targets: newRecent[bool](), unimplemented: newRecent[bool](),
	}
	for _, id := range opts.NodeIDs {
		m.nodeIDs.put(id, true)
	}
	if opts.Node != nil {
		m.caps.learn(opts.Node)
	}
	if opts.Controller != nil {
		m.caps.learn(opts.Controller)
	}
	if opts.Plugin != nil {
		m.caps.learn(opts.Plugin)
	}
	return m
}

// volume returns the volume of that id, or one without any records.
func (m *model) volume(id string) *volume {
	if v := m.volumes[id]; v != nil {
		return v
	}
	return &volume{id: id, attached: map[string]*record{}, staged: map[string]*record{}, published: map[string]*record{}}
}

// put returns the record of that key, making one that is uncertain if there is
// none.
func (m *model) put(v *volume, s step, key string, req proto.Message) (r *record, fresh bool) {
	if old := m.volumes[v.id]; old != nil {
		v = old
	}
	records := v.records(s)
	if r := records[key]; r != nil {
		return r, false
	}
	r = &record{volume: v, step: s, key: key, req: withoutSecrets(req)}
	records[key] = r
	m.volumes[v.id] = v
	if s != attached && m.owners[key] == nil {
		m.owners[key] = r
	}
	return r, true
}

// drop forgets a record, and its volume with the last one.
func (m *model) drop(r *record) {
	records := r.volume.records(r.step)
	if records[r.key] != r {
		return
	}
	delete(records, r.key)
	if m.owners[r.key] == r {
		delete(m.owners, r.key)
	}
	v := r.volume
	v.expandRefused = false
	if len(v.attached)+len(v.staged)+len(v.published) == 0 {
		delete(m.volumes, v.id)
	}
}

// identify finds out what the call is about.
func (k *Call) identify() {
	if r, ok := k.req.(interface{ GetVolumeId() string }); ok {
		k.volume = r.GetVolumeId()
		if k.volume != "" {
			k.subject = "volume " + k.volume
		}
	}
	switch r := k.req.(type) {
	case *csi.CreateVolumeRequest:
		k.subject = "volume name " + r.GetName()
	case *csi.CreateSnapshotRequest:
		k.subject = "snapshot name " + r.GetName()
	case *csi.DeleteSnapshotRequest:
		k.subject = "snapshot " + r.GetSnapshotId()
	case *csi.GetSnapshotRequest:
		k.subject = "snapshot " + r.GetSnapshotId()
	case *csi.NodePublishVolumeRequest:
		k.target = r.GetTargetPath()
	case *csi.NodeUnpublishVolumeRequest:
		k.target = r.GetTargetPath()
	}
}

const overlapText = "began while %s for the same %s was in flight; wait for its answer, or give it up, first"

// checkOverlap judges calls that are in flight for the same subject. On one
// connection the news that the orchestrator gave the older one up comes before
// the younger. On different ones it may come late, so those are judged when the
// first of the two ends.
func (c *Checker) checkOverlap(k *Call) {
	if k.subject == "" {
		return
	}
	c.settleAbandoned(k.subject, nil)
	for _, other := range c.flight[k.subject] {
		if c.opts.Parallel && k.target != "" && other.target != "" && k.target != other.target {
			continue
		}
		if k.exact && other.exact || k.conn != nil && k.conn == other.conn {
			c.report(k, OneCallPerVolume, overlapText, other.method, k.about())
			continue
		}
		k.overlaps = append(k.overlaps, other)
	}
	c.flight[k.subject] = append(c.flight[k.subject], k)
}

// about says of what kind the subject is.
func (k *Call) about() string {
	kind, _, _ := strings.Cut(k.subject, " ")
	return kind
}

// settleAbandoned ends all calls of the subject, except one, that the
// orchestrator no longer waits for.
func (c *Checker) settleAbandoned(subject string, except *Call) {
	for _, other := range slices.Clone(c.flight[subject]) {
		if other != except && other.gone() != nil {
			c.settle(other, nil, other.gone())
		}
	}
}

// dropFlight ends all calls in flight, with err or, for nil, without a trace.
func (c *Checker) dropFlight(err error) {
	for _, calls := range c.flight {
		for _, k := range calls {
			k.overlaps = nil // with whom, nobody knows any more
		}
	}
	for _, subject := range slices.Sorted(maps.Keys(c.flight)) {
		for _, k := range slices.Clone(c.flight[subject]) {
			if err != nil {
				c.settle(k, nil, err)
			}
			k.settled = true
		}
	}
}

// judgeOverlaps reports the overlaps of k with calls that the orchestrator has
// not given up, and those of the others with k.
func (c *Checker) judgeOverlaps(k *Call, abandoned bool) {
	for _, other := range k.overlaps {
		if !other.settled {
			c.report(k, OneCallPerVolume, overlapText, other.method, k.about())
		}
	}
	k.overlaps = nil
	for _, other := range c.flight[k.subject] {
		i := slices.Index(other.overlaps, k)
		if i < 0 {
			continue
		}
		other.overlaps = slices.Delete(other.overlaps, i, i+1)
		if !abandoned {
			c.report(other, OneCallPerVolume, overlapText, k.method, k.about())
		}
	}
}

// outcome is what an answer says about the work.
type outcome int

const (
	done outcome = iota
	failed
	unknown
)

// outcomeOf classifies an answer. RESOURCE_EXHAUSTED of ControllerPublishVolume
// is defined as "the node is full", so nothing was attached; elsewhere it may
// come from gRPC itself. NOT_FOUND of an undo means that there is nothing to
// undo.
func outcomeOf(method string, err error) outcome {
	switch status.Code(err) {
	case codes.OK:
		return done
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted,
		codes.Internal, codes.Unknown, codes.DataLoss:
		return unknown
	case codes.ResourceExhausted:
		if method == "ControllerPublishVolume" {
			return failed
		}
		return unknown
	case codes.NotFound:
		switch method {
		case "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume":
			return done
		}
	}
	return failed
}

// settle applies the end of a call, once.
func (c *Checker) settle(k *Call, resp any, err error) {
	if k.settled {
		return
	}
	k.settled = true
	if k.subject != "" {
		c.judgeOverlaps(k, err != nil && k.gone() != nil)
		rest := slices.DeleteFunc(c.flight[k.subject], func(o *Call) bool { return o == k })
		if len(rest) == 0 {
			delete(c.flight, k.subject)
		} else {
			c.flight[k.subject] = rest
		}
	}
	out := outcomeOf(k.method, err)
	c.settleState(k, resp, out)
	switch code := status.Code(err); {
	case out == done:
		c.learnAnswer(k, resp)
	case code == codes.Unimplemented && k.volume != "":
		c.unimplemented.put(k.method+" "+k.volume, true)
		clear(c.asked) // it denies what it announced
	case code == codes.FailedPrecondition && k.method == "NodeExpandVolume":
		if v := c.volumes[k.volume]; v != nil {
			v.expandRefused = true
		}
	}
}

// settleState confirms, removes or restores what the call made or undid.
func (c *Checker) settleState(k *Call, resp any, out outcome) {
	s, key, makes := made(k.req)
	switch {
	case makes && k.volume != "" && key != "" && out == done:
		r, _ := c.put(c.volume(k.volume), s, key, k.req)
		r.certain, r.req = true, withoutSecrets(k.req)
		r.volume.expandRefused = false
		if answer, ok := resp.(*csi.ControllerPublishVolumeResponse); ok {
			r.contexts = append(r.contexts, maps.Clone(answer.GetPublishContext()))
			r.contexts = r.contexts[max(0, len(r.contexts)-2):]
		}
	case k.created != nil && out == failed && !k.created.certain:
		c.drop(k.created)
	}
	for _, u := range k.undone {
		switch {
		case out == done && !u.record.certain:
			c.drop(u.record)
		case out == failed:
			u.record.certain = u.record.certain || u.wasCertain
		}
	}
}

// made returns what a request makes, if it makes anything.
func made(req proto.Message) (s step, key string, ok bool) {
	switch r := req.(type) {
	case *csi.ControllerPublishVolumeRequest:
		return attached, r.GetNodeId(), true
	case *csi.NodeStageVolumeRequest:
		return staged, r.GetStagingTargetPath(), true
	case *csi.NodePublishVolumeRequest:
		return published, r.GetTargetPath(), true
	}
	return "", "", false
}

// learnAnswer takes from a good answer what later calls must fit.
func (c *Checker) learnAnswer(k *Call, resp any) {
	if c.caps.learn(resp) {
		c.unimplemented.clear()
	}
	switch r := resp.(type) {
	case *csi.NodeGetInfoResponse:
		if r.GetNodeId() != "" {
			c.nodeIDs.put(r.GetNodeId(), true)
		}
	case *csi.CreateVolumeResponse:
		if id := r.GetVolume().GetVolumeId(); id != "" {
			c.created.put(id, maps.Clone(r.GetVolume().GetVolumeContext()))
		}
	case *csi.DeleteVolumeResponse:
		c.created.remove(k.volume)
		c.expanded.remove(k.volume)
	case *csi.ControllerExpandVolumeResponse:
		c.expanded.put(k.volume, true)
	case *csi.ProbeResponse:
		c.probed = r.GetReady() == nil || r.GetReady().GetValue()
	case *csi.GetPluginInfoResponse:
		c.named = c.opts.DriverName == "" || c.opts.DriverName == r.GetName()
	}
}

// leftovers lists all records and calls in flight.
func (c *Checker) leftovers() []Violation {
	var list []Violation
	add := func(v Violation) {
		if c.on[v.Rule] {
			list = append(list, c.complete(v))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.volumes)) {
		for _, r := range c.volumes[id].all() {
			v := Violation{Rule: LeftBehind, Method: r.way(), VolumeID: id, Text: fmt.Sprintf("the volume is still %v; call %s", r, r.way())}
			if !r.certain {
				v.Rule = LeftUncertain
				v.Text = fmt.Sprintf("the volume may still be %v, the last answer did not tell; repeat the call or call %s", r, r.way())
			}
			add(v)
		}
	}
	for _, subject := range slices.Sorted(maps.Keys(c.flight)) {
		for _, k := range c.flight[subject] {
			if k.gone() == nil {
				add(Violation{Rule: LeftInFlight, Method: k.method, VolumeID: k.volume, Text: "the call has not ended; wait for it or cancel it"})
			}
		}
	}
	return list
}
