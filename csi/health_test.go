package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/volumekit/volumekit/plugins"
)

var everyPeriod = Health{Period: healthPeriod, Jitter: -1}

func TestHealthIsToldWhenItChanges(t *testing.T) {
	t.Parallel()
	const degraded, lost = csipb.VolumeHealthErrorType_DEGRADED, csipb.VolumeHealthErrorType_DATA_LOSS
	onHealth(t, everyPeriod, allHealth, func(r *healthRig) {
		r.want("before the first round", r.sink.took(), "")
		r.pass()
		r.want("first answers", r.sink.took(), "a:; b:; va of pod:; vb of pod:")
		r.pass()
		r.want("the same again", r.sink.took(), "")
		r.tells("a", "va", fault(lost, "Bad", "gone"), fault(degraded, "Slow", "one"))
		r.pass()
		r.want("faults", r.sink.took(), "va of pod: DataLoss/Bad/gone, Degraded/Slow/one")
		r.want("known", r.known("va"), "DataLoss/Bad/gone, Degraded/Slow/one")
		r.tells("a", "va", fault(degraded, "Slow", "one"), fault(lost, "Bad", "gone"), fault(degraded, "Slow", "again"))
		r.pass()
		r.want("another order, and one twice", r.sink.took(), "")
		r.tells("a", "va", fault(degraded, "Slow", "two"))
		r.pass()
		r.want("one cleared, another text", r.sink.took(), "va of pod: Degraded/Slow/two")
		r.tells("a", "va")
		r.pass()
		r.want("cleared", r.sink.took(), "va of pod:")
		r.want("known", r.known("va"), "")
		r.want("events", r.reasons(), strings.Join([]string{
			"Warning VolumeConditionAbnormal pod", "Warning VolumeConditionAbnormal pod", "Normal VolumeConditionNormal pod", "Normal VolumeConditionNormal pod",
		}, "; "))
		q := r.drivers["a"].asked[0]
		if q.VolumeId != "h-va" || q.VolumePublishPath != "/t/va" || q.StagingTargetPath != "/s/va" {
			r.Errorf("request: %v", q)
		}
	})
}

func TestStorageHealth(t *testing.T) {
	t.Parallel()
	onHealth(t, everyPeriod, []csipb.NodeServiceCapability_RPC_Type{canStorageHealth}, func(r *healthRig) {
		r.drop(plugins.PodVolume{Pod: "uid", Plugin: Name, Name: "va"}) // a driver without volumes is asked too
		a := r.drivers["a"]
		a.set(func() {
			a.storage = &csipb.NodeGetStorageHealthResponse{BackendHealth: []*csipb.NodeGetStorageHealthResponse_StorageBackendHealth{
				{Status: csipb.StorageHealthErrorType_STORAGE_UNREACHABLE, Reason: "Cut", Message: "m"}, {Status: 77, Reason: "New"},
			}}
		})
		r.pass()
		r.want("told", r.sink.took(), "a: StorageUnreachable/Cut/m; b:")
		a.set(func() { a.err = status.Error(codes.Internal, "") })
		r.pass()
		r.want("an error", r.sink.took(), "")
		a.set(func() { a.err, a.storage = nil, &csipb.NodeGetStorageHealthResponse{} })
		r.pass()
		r.want("cleared", r.sink.took(), "a:")
	})
}

func TestHealthStaysAsKnownOnErrors(t *testing.T) {
	t.Parallel()
	onHealth(t, everyPeriod, allHealth, func(r *healthRig) {
		r.tells("a", "va", fault(csipb.VolumeHealthErrorType_INACCESSIBLE, "Cut", ""))
		r.pass()
		r.sink.took()
		a := r.drivers["a"]
		for name, change := range map[string]func(){
			"an error":       func() { a.err = status.Error(codes.Internal, "") },
			"no health":      func() { a.volumes["h-va"] = nil },
			"another volume": func() { a.volumes["h-va"] = &csipb.VolumeHealth{VolumeId: "h-other"} },
		} {
			healthy := maps.Clone(a.volumes)
			a.set(change)
			r.pass()
			r.want(name, r.sink.took()+r.known("va"), "Inaccessible/Cut/")
			a.set(func() { a.err, a.volumes = nil, healthy })
		}
		r.swap("a", nil)
		r.pass()
		r.want("no driver", r.sink.took()+r.known("va"), "Inaccessible/Cut/")
		r.swap("a", a)
		r.drop(plugins.PodVolume{Pod: "uid", Plugin: Name, Name: "va"})
		r.pass()
		r.want("the pod is gone", r.sink.took()+r.known("va"), "")
	})
}

func TestHungDriverDelaysNoOther(t *testing.T) {
	t.Parallel()
	config := Health{Period: healthPeriod, Jitter: -1, Parallel: 2, Timeout: 10 * time.Second}
	onHealth(t, config, allHealth, func(r *healthRig) {
		a, b := r.drivers["a"], r.drivers["b"]
		for i := range 20 {
			r.has("a", fmt.Sprintf("more-%d", i))
			r.has("b", fmt.Sprintf("more-%d", i+20))
		}
		a.set(func() { a.hang = true })
		r.pass()
		if told := r.sink.took(); strings.Count(told, "of pod") != 21 {
			r.Errorf("told at once: %s", told)
		}
		r.pass() // the first round of a takes 11 times ten seconds
		a.set(func() { a.hang = false })
		r.pass()
		r.pass()
		if told := r.sink.took(); strings.Count(told, "of pod") != 21 {
			r.Errorf("told when it answers again: %s", told)
		}
		if a.most > 2 || b.most > 2 {
			r.Errorf("%d and %d calls at the same time", a.most, b.most)
		}
	})
}

func TestNothingIsToldAfterTheEnd(t *testing.T) {
	t.Parallel()
	onHealth(t, Health{Period: healthPeriod, Jitter: -1, Timeout: time.Hour}, allHealth, func(r *healthRig) {
		r.tells("a", "va", fault(csipb.VolumeHealthErrorType_DEGRADED, "Slow", ""))
		release := make(chan struct{})
		r.becomes("a", func(d *driver) { d.node = &late{healthDriver: r.drivers["a"], until: release} })
		r.drivers["b"].set(func() { r.drivers["b"].hang = true })
		r.pass()
		r.sink.took()
		r.cancel()
		synctest.Wait()
		close(release) // a driver's answer that comes when nobody wants it any more
		if err := <-r.ended; err != nil {
			r.Error(err)
		}
		r.ended <- nil
		r.want("told", r.sink.took()+r.reasons()+r.known("va"), "")
	})
}

// late answers only when it is told to, whatever the caller does.
type late struct {
	*healthDriver
	until chan struct{}
}

func (l *late) NodeGetVolumeHealth(_ context.Context, r *csipb.NodeGetVolumeHealthRequest, _ ...grpc.CallOption) (*csipb.NodeGetVolumeHealthResponse, error) {
	<-l.until
	return l.healthDriver.NodeGetVolumeHealth(context.Background(), r)
}

func TestVolumeThatGoesWhileItIsAskedFor(t *testing.T) {
	t.Parallel()
	onHealth(t, everyPeriod, allHealth, func(r *healthRig) {
		r.tells("a", "va", fault(csipb.VolumeHealthErrorType_DEGRADED, "Slow", ""))
		release := make(chan struct{})
		r.becomes("a", func(d *driver) { d.node = &late{healthDriver: r.drivers["a"], until: release} })
		r.pass()
		r.sink.took()
		r.drop(plugins.PodVolume{Pod: "uid", Plugin: Name, Name: "va"})
		close(release)
		synctest.Wait()
		r.want("told", r.sink.took()+r.reasons()+r.known("va"), "")
	})
}

func TestHealthOnDemandOnly(t *testing.T) {
	t.Parallel()
	onHealth(t, Health{}, allHealth, func(r *healthRig) {
		r.tells("a", "va", fault(csipb.VolumeHealthErrorType_DEGRADED, "Slow", "m"))
		r.pass()
		r.want("told", r.sink.took()+r.known("va"), "")
		target := plugins.Target{Volume: plugins.PodVolume{Pod: "uid", Plugin: Name, Name: "va"}}
		faults, err := r.CheckHealth(r.Context(), target)
		if err != nil || faultText(faults) != "Degraded/Slow/m" {
			r.Errorf("%v, %v", faults, err)
		}
		r.becomes("a", func(d *driver) { delete(d.nodeCan, canVolumeHealth) })
		if _, err := r.CheckHealth(r.Context(), target); plugins.ClassOf(err) != plugins.ClassUnsupported {
			r.Error(err)
		}
	})
}

func TestOldVolumeCondition(t *testing.T) {
	t.Parallel()
	can := []csipb.NodeServiceCapability_RPC_Type{canStats, canOldCondition}
	onHealth(t, everyPeriod, can, func(r *healthRig) {
		a := r.drivers["a"]
		a.set(func() { a.stats = withUnknown(condition(true, "disk is on\nfire")) })
		r.drivers["b"].set(func() { r.drivers["b"].stats = withUnknown(nil) })
		r.pass()
		r.want("abnormal", r.sink.took(), "va of pod: Abnormal/VolumeCondition/disk is on fire")
		a.set(func() { a.stats = withUnknown(condition(false, "well")) })
		r.pass()
		r.want("normal", r.sink.took(), "va of pod:")
		r.becomes("a", func(d *driver) { delete(d.nodeCan, canOldCondition) })
		a.set(func() { a.stats = withUnknown(condition(true, "")) })
		r.pass()
		r.want("not announced", r.sink.took(), "")
	})
}

func withUnknown(raw []byte) *csipb.NodeGetVolumeStatsResponse {
	res := &csipb.NodeGetVolumeStatsResponse{}
	res.ProtoReflect().SetUnknown(raw)
	return res
}

// condition is a VolumeCondition as field 2.
func condition(abnormal bool, message string) []byte {
	var inner []byte
	if abnormal {
		inner = protowire.AppendVarint(protowire.AppendTag(inner, 1, protowire.VarintType), 1)
	}
	inner = protowire.AppendString(protowire.AppendTag(inner, 2, protowire.BytesType), message)
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), inner)
}

func TestOldConditionOnTheWire(t *testing.T) {
	t.Parallel()
	other := protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 7)
	wrongKind := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	for name, c := range map[string]struct {
		raw   []byte
		want  string
		wrong error
	}{
		"abnormal":      {condition(true, "m"), "Abnormal/VolumeCondition/m", nil},
		"normal":        {condition(false, "m"), "", nil},
		"others around": {slices.Concat(other, condition(true, "m"), other), "Abnormal/VolumeCondition/m", nil},
		"merged":        {slices.Concat(condition(true, "m"), condition(false, "n")), "Abnormal/VolumeCondition/n", nil},
		"empty":         {nil, "", errNoCondition},
		"others only":   {other, "", errNoCondition},
		"another kind":  {wrongKind, "", errNoCondition},
		"cut":           {condition(true, "m")[:3], "", errBadCondition},
		"cut within":    {protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte{0x12, 0x7f}), "", errBadCondition},
		"garbage":       {[]byte{0xff, 0xff, 0xff}, "", errBadCondition},
		"huge":          {condition(true, strings.Repeat("x", maxOldCondition)), "", errBadCondition},
	} {
		got, err := oldCondition(c.raw)
		if faultText(got) != c.want || !errors.Is(err, c.wrong) {
			t.Errorf("%s: %q, %v", name, faultText(got), err)
		}
	}
}

func FuzzOldCondition(f *testing.F) {
	f.Add(condition(true, "m"))
	f.Add(slices.Concat(condition(true, "m"), condition(false, "n")))
	f.Add([]byte{0x12, 0x7f, 0x08})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		faults, err := oldCondition(raw)
		if err != nil && len(faults) > 0 {
			t.Errorf("%v and %v", faults, err)
		}
		for _, one := range faults {
			if len(one.Message) > maxMessage+64 || !printable(one.Message) {
				t.Errorf("message %q", one.Message)
			}
		}
	})
}

func TestFaultsAreBoundedAndClean(t *testing.T) {
	t.Parallel()
	var list faultList
	for i := range 100 {
		list.add("Degraded", fmt.Sprintf("Reason%d", i%50), "a\x00b\xff"+strings.Repeat("m", 5000))
	}
	list.add("", "Unknown", "")
	if len(list) != maxFaults {
		t.Errorf("%d faults", len(list))
	}
	for _, f := range list {
		if len(f.Message) > maxMessage+64 || !printable(f.Message) {
			t.Errorf("message of %d bytes: %q", len(f.Message), f.Message[:20])
		}
	}
	for reason, want := range map[string]string{
		"Fine_1": "Fine_1", "": "Other", "<b>": "b", "../..\n": "Other", strings.Repeat("r", 500): strings.Repeat("r", maxReason), "\xff\xfe": "Other",
	} {
		if got := word(reason, "Other"); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}
