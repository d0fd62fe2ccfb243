package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

const (
	canVolumeHealth  = csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH
	canStorageHealth = csipb.NodeServiceCapability_RPC_GET_STORAGE_HEALTH
	// canOldCondition is VOLUME_CONDITION, which the spec had up to 1.12: the
	// driver tells a volume's condition among its stats.
	canOldCondition csipb.NodeServiceCapability_RPC_Type = 4
)

const (
	// maxFaults is how many faults are taken from one answer.
	maxFaults = 16
	// maxReason bounds a reason, in bytes.
	maxReason = 128
	// maxOldCondition bounds what is looked at to find an old condition.
	maxOldCondition = 64 << 10
)

// What the types of the spec are called here. Others are unknown and ignored, as
// the spec demands.
var (
	volumeFaults = map[csipb.VolumeHealthErrorType]string{
		csipb.VolumeHealthErrorType_DEGRADED:     "Degraded",
		csipb.VolumeHealthErrorType_INACCESSIBLE: "Inaccessible",
		csipb.VolumeHealthErrorType_DATA_LOSS:    "DataLoss",
	}
	storageFaults = map[csipb.StorageHealthErrorType]string{
		csipb.StorageHealthErrorType_STORAGE_DEGRADED:    "StorageDegraded",
		csipb.StorageHealthErrorType_STORAGE_UNREACHABLE: "StorageUnreachable",
	}
)

// Status and reason of a volume that an older driver calls abnormal.
const (
	abnormalStatus = "Abnormal"
	abnormalReason = "VolumeCondition"
)

// tellsHealth reports whether the driver tells the health of volumes.
func tellsHealth(d *driver) bool {
	return d.nodeCan.has(canVolumeHealth) || d.nodeCan.has(canOldCondition) && d.nodeCan.has(canStats)
}

// askVolumeHealth asks for a volume's health in the way that the driver has.
func (p *Plugin) askVolumeHealth(ctx context.Context, d *driver, at published, target plugins.Target) ([]plugins.Fault, error) {
	if !tellsHealth(d) {
		return nil, plugins.Unsupportedf("CSI driver %s does not tell the health of volumes: it lacks the capability GET_VOLUME_HEALTH", d.name)
	}
	if !d.nodeCan.has(canVolumeHealth) {
		res, err := p.askStats(ctx, d, at, target)
		if err != nil {
			return nil, err
		}
		faults, err := oldCondition(res.ProtoReflect().GetUnknown())
		if err != nil {
			return nil, plugins.Transient(fmt.Errorf("condition that CSI driver %s answered: %w", d.name, err))
		}
		return d.withoutSecrets(faults), nil
	}
	req := &csipb.NodeGetVolumeHealthRequest{VolumeId: at.handle, VolumePublishPath: at.target, StagingTargetPath: at.staging}
	if !d.nodeCan.has(canStage) {
		req.StagingTargetPath = ""
	}
	res, err := call(ctx, d, nodeVolumeHealth, at.handle, req, ifStillThere(p, at, target, d.node.NodeGetVolumeHealth))
	if err != nil {
		return nil, err
	}
	health := res.GetVolumeHealth()
	if id := health.GetVolumeId(); health == nil || id != "" && id != at.handle {
		return nil, plugins.Transientf("CSI driver %s answered NodeGetVolumeHealth for volume %s without its health", d.name, shorten(at.handle, 128))
	}
	var list faultList
	for _, one := range health.GetHealthStatuses() {
		list.add(volumeFaults[one.GetStatus()], one.GetReason(), one.GetMessage())
	}
	return d.withoutSecrets(list.sorted()), nil
}

// withoutSecrets takes what went to the driver as a secret out of what it says.
func (d *driver) withoutSecrets(faults []plugins.Fault) []plugins.Fault {
	shapes := d.calls.secrets.shapes()
	for i := range faults {
		faults[i].Message = withoutSecrets(faults[i].Message, shapes)
	}
	return faults
}

// askStorageHealth asks for the health of a driver's storage.
func askStorageHealth(ctx context.Context, d *driver) ([]plugins.Fault, error) {
	res, err := call(ctx, d, nodeStorageHealth, "", &csipb.NodeGetStorageHealthRequest{}, d.node.NodeGetStorageHealth)
	if err != nil {
		return nil, err
	}
	var list faultList
	for _, one := range res.GetBackendHealth() {
		list.add(storageFaults[one.GetStatus()], one.GetReason(), one.GetMessage())
	}
	return d.withoutSecrets(list.sorted()), nil
}

// faultList collects what a driver says, which is hostile.
type faultList []plugins.Fault

// add takes in a fault, unless its status is not known, or it is there already.
func (l *faultList) add(status, reason, message string) {
	if status == "" || len(*l) >= maxFaults {
		return
	}
	f := plugins.Fault{Status: status, Reason: word(reason, status), Message: clean(message, maxMessage)}
	if !slices.ContainsFunc(*l, func(o plugins.Fault) bool { return samePair(o, f) }) {
		*l = append(*l, f)
	}
}

func (l faultList) sorted() []plugins.Fault {
	slices.SortFunc(l, func(a, b plugins.Fault) int {
		return cmp.Or(strings.Compare(a.Status, b.Status), strings.Compare(a.Reason, b.Reason))
	})
	return l
}

func samePair(a, b plugins.Fault) bool { return a.Status == b.Status && a.Reason == b.Reason }

// word keeps of a text what can be a CamelCase word, and gives the other if
// nothing is left.
func word(text, other string) string {
	text = strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' {
			return r
		}
		return -1
	}, text[:min(len(text), maxReason)])
	if text == "" {
		return other
	}
	return text
}

var (
	errNoCondition  = errors.New("it is not there, although the driver announced it")
	errBadCondition = errors.New("it cannot be read")
)

// oldCondition reads the VolumeCondition that NodeGetVolumeStatsResponse had as
// field 2 up to spec 1.12 (abnormal as field 1, message as field 2) from the
// fields that the present spec does not know.
func oldCondition(unknown []byte) ([]plugins.Fault, error) {
	if len(unknown) > maxOldCondition {
		return nil, errBadCondition
	}
	var found, abnormal bool
	var message string
	err := eachField(unknown, func(number protowire.Number, kind protowire.Type, value []byte) bool {
		if number != 2 || kind != protowire.BytesType {
			return true
		}
		inner, n := protowire.ConsumeBytes(value)
		if n < 0 {
			return false
		}
		found = true
		return eachField(inner, func(number protowire.Number, kind protowire.Type, value []byte) bool {
			switch {
			case number == 1 && kind == protowire.VarintType:
				v, n := protowire.ConsumeVarint(value)
				abnormal = protowire.DecodeBool(v)
				return n >= 0
			case number == 2 && kind == protowire.BytesType:
				v, n := protowire.ConsumeBytes(value)
				message = string(v)
				return n >= 0
			}
			return true
		}) == nil
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, errNoCondition
	case !abnormal:
		return nil, nil
	}
	return []plugins.Fault{{Status: abnormalStatus, Reason: abnormalReason, Message: clean(message, maxMessage)}}, nil
}

// eachField visits the fields of an encoded message.
func eachField(text []byte, visit func(number protowire.Number, kind protowire.Type, value []byte) bool) error {
	for len(text) > 0 {
		number, kind, n := protowire.ConsumeTag(text)
		if n < 0 {
			return errBadCondition
		}
		text = text[n:]
		if n = protowire.ConsumeFieldValue(number, kind, text); n < 0 || !visit(number, kind, text[:n]) {
			return errBadCondition
		}
		text = text[n:]
	}
	return nil
}

// healthBook is what the last answers said. Its zero value is empty.
type healthBook struct {
	mu      sync.Mutex
	volumes map[plugins.PodVolume][]plugins.Fault
	storage map[string][]plugins.Fault
}

// volume returns the known faults of a volume, which are the caller's.
func (b *healthBook) volume(v plugins.PodVolume) []plugins.Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.volumes[v])
}

// setVolume enters an answer, and returns what was known before and whether the
// answer is news.
func (b *healthBook) setVolume(v plugins.PodVolume, faults []plugins.Fault) (before []plugins.Fault, news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.volumes == nil {
		b.volumes = map[plugins.PodVolume][]plugins.Fault{}
	}
	before, known := b.volumes[v]
	b.volumes[v] = slices.Clone(faults)
	return before, !known || !slices.Equal(before, faults)
}

func (b *healthBook) setStorage(driver string, faults []plugins.Fault) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.storage == nil {
		b.storage = map[string][]plugins.Fault{}
	}
	before, known := b.storage[driver]
	b.storage[driver] = slices.Clone(faults)
	return !known || !slices.Equal(before, faults)
}

// keep forgets volumes that are not among those.
func (b *healthBook) keep(all map[string][]plugins.PodVolume) {
	there := map[plugins.PodVolume]struct{}{}
	for _, volumes := range all {
		for _, v := range volumes {
			there[v] = struct{}{}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for v := range b.volumes {
		if _, ok := there[v]; !ok {
			delete(b.volumes, v)
		}
	}
}

// Reasons of events about health. They are those of the external health monitor.
const (
	reasonAbnormal = "VolumeConditionAbnormal"
	reasonNormal   = "VolumeConditionNormal"
)

// tellFaults records an event for each fault that has appeared or cleared. That
// the text of one changes is none.
func (p *Plugin) tellFaults(v plugins.PodVolume, at published, before, after []plugins.Fault) {
	if at.pod.Name == "" {
		return
	}
	pod := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: at.pod.Namespace, Name: at.pod.Name, UID: at.pod.UID}
	missing := func(list []plugins.Fault, f plugins.Fault) bool {
		return !slices.ContainsFunc(list, func(o plugins.Fault) bool { return samePair(o, f) })
	}
	for _, f := range after {
		if missing(before, f) {
			p.host.Event(pod, v1.EventTypeWarning, reasonAbnormal, fmt.Sprintf("Volume %q is %s (%s): %s", v.Name, f.Status, f.Reason, f.Message))
		}
	}
	for _, f := range before {
		if missing(after, f) {
			p.host.Event(pod, v1.EventTypeNormal, reasonNormal, fmt.Sprintf("Volume %q is no longer %s (%s)", v.Name, f.Status, f.Reason))
		}
	}
}
