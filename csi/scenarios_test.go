package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

func pvSpec(driver, handle string, change ...func(*v1.PersistentVolume)) *plugins.Spec {
	pv := csiPV("pv", driver, handle)
	for _, f := range change {
		f(pv)
	}
	return &plugins.Spec{PV: pv}
}

func inlineSpec(driver string) *plugins.Spec {
	return &plugins.Spec{Volume: &v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}}}}
}

func rawDevice(pv *v1.PersistentVolume) {
	mode := v1.PersistentVolumeBlock
	pv.Spec.VolumeMode = &mode
}

// What the plugin takes, and what it calls it: the names are the kubelet's, and
// those of a volume's own part may hold any character.
func TestIdentify(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	if r.Name() != "kubernetes.io/csi" {
		t.Errorf("name %s", r.Name())
	}
	long := strings.Repeat("h", maxHandle)
	for name, c := range map[string]struct {
		spec           *plugins.Spec
		storage        string
		refused, taken bool
	}{
		"persistent volume": {spec: pvSpec("d.example", "h"), storage: "d.example^h", taken: true},
		"raw device":        {spec: pvSpec("d.example", "h", rawDevice), storage: "d.example^h", taken: true},
		"inline":            {spec: inlineSpec("d.example"), taken: true},
		"two carets":        {spec: pvSpec("d", "a^b^c"), storage: "d^a^b^c", taken: true},
		"path":              {spec: pvSpec("d", "/subs/x/../disks/y"), storage: "d^/subs/x/../disks/y", taken: true},
		"blanks":            {spec: pvSpec("d", " a b\u00e9 "), storage: "d^ a b\u00e9 ", taken: true},
		"dots and dashes":   {spec: pvSpec("a-b.c_d.e", "."), storage: "a-b.c_d.e^.", taken: true},
		"longest handle":    {spec: pvSpec("d", long), storage: "d^" + long, taken: true},
		"handle too long":   {spec: pvSpec("d", long+"h"), taken: true, refused: true},
		"no handle":         {spec: pvSpec("d", ""), taken: true, refused: true},
		"control character": {spec: pvSpec("d", "a\nb"), taken: true, refused: true},
		"no driver":         {spec: pvSpec("", "h"), taken: true, refused: true},
		"hostile driver":    {spec: pvSpec("../../etc", "h"), taken: true, refused: true},
		"hostile inline":    {spec: inlineSpec("a/b"), taken: true, refused: true},
		"other source":      {spec: &plugins.Spec{PV: &v1.PersistentVolume{}}, refused: true},
		"other volume":      {spec: &plugins.Spec{Volume: &v1.Volume{Name: "x"}}, refused: true},
		"nothing":           {spec: &plugins.Spec{}, refused: true},
	} {
		if got := r.Supports(c.spec); got != c.taken {
			t.Errorf("%s: supported %v", name, got)
		}
		id, err := r.Identify(c.spec)
		if c.refused {
			if plugins.ClassOf(err) != plugins.ClassPermanent || len(err.Error()) > 500 {
				t.Errorf("%s: %.600v", name, err)
			}
			continue
		}
		persistent := c.spec.PV != nil
		if err != nil || id.Storage != c.storage || id.Attach != persistent || id.Device != persistent || !id.Durable || id.Lane == "" {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	r.attacher = NoAttach()
	if id, err := r.Identify(pvSpec("d", "h")); err != nil || id.Attach || !id.Device {
		t.Errorf("where nothing is attached: %+v, %v", id, err)
	}
	if _, err := r.Identify(nil); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Errorf("no spec: %v", err)
	}
}

func TestDeviceMountPath(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	root := filepath.Join(r.host.Layout.Root, "plugins/kubernetes.io/csi")
	sum := "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123" // sha256sum of h
	for name, c := range map[string]struct {
		spec *plugins.Spec
		want string
	}{
		"file system":    {pvSpec("d.example", "h"), filepath.Join(root, "d.example", sum, "globalmount")},
		"raw device":     {pvSpec("d.example", "h", rawDevice), filepath.Join(root, "volumeDevices/staging/pv")},
		"inline":         {inlineSpec("d.example"), ""},
		"no csi source":  {&plugins.Spec{PV: &v1.PersistentVolume{}}, ""},
		"no handle":      {pvSpec("d.example", ""), ""},
		"hostile driver": {pvSpec("../..", "h"), ""},
		"hostile name":   {pvSpec("d", "h", rawDevice, func(pv *v1.PersistentVolume) { pv.Name = "../pv" }), ""},
		"nothing":        {nil, ""},
	} {
		got, err := r.DeviceMountPath(c.spec)
		if got != c.want || (c.want == "") != (plugins.ClassOf(err) == plugins.ClassPermanent) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if c.want != "" || name == "hostile name" { // a path is made of it, which a later request brings
			continue
		}
		if _, err := r.MountDevice(t.Context(), plugins.DeviceRequest{Spec: c.spec, Path: "/nowhere"}); plugins.ClassOf(err) == plugins.ClassNone {
			t.Errorf("%s: it is staged", name)
		}
	}
	if _, err := r.MountDevice(t.Context(), plugins.DeviceRequest{Spec: pvSpec("d", "h")}); err == nil {
		t.Error("it is staged at no path")
	}
	r.want("calls", r.fake.took(), "")
}

// csiDriver stores what is said about the driver.
func (r *growthRig) csiDriver(change func(*storagev1.CSIDriverSpec)) {
	r.Helper()
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
	change(&object.Spec)
	r.apply(object)
}

// The label of a volume goes to drivers that can mount with one, on every call
// alike, and then nobody relabels files; other drivers never see it.
func TestSELinuxLabel(t *testing.T) {
	t.Parallel()
	const label = "system_u:object_r:container_file_t:s0:c0,c1"
	flag := `context="` + label + `"`
	for name, c := range map[string]struct {
		object, says bool
		label, want  string
	}{
		"supported":          {object: true, says: true, label: label, want: flag},
		"supported, none":    {object: true, says: true},
		"not supported":      {object: true, label: label},
		"nothing known":      {label: label},
		"not supported,none": {object: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newGrowthRig(t)
			if c.object {
				r.csiDriver(func(s *storagev1.CSIDriverSpec) { s.SELinuxMount = ptr(c.says) })
			}
			flags := []string{"noatime"}
			if c.want != "" {
				flags = append(flags, c.want)
			}
			req := r.request("pod-uid")
			req.Params.SELinuxLabel = c.label
			pub, err := r.prepare(t.Context(), req, false)
			if err != nil {
				t.Fatal(err)
			}
			st, err := r.prepareStage(t.Context(), r.fake.d, pub.info, req.Spec, "/x/staging", req.Params, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Expand(t.Context(), req)
			for what, got := range map[string][]string{
				"stage":   st.request.GetVolumeCapability().GetMount().GetMountFlags(),
				"publish": pub.request.GetVolumeCapability().GetMount().GetMountFlags(),
				"expand":  r.fake.node.GetVolumeCapability().GetMount().GetMountFlags(),
			} {
				if err != nil || !slices.Equal(got, flags) {
					t.Errorf("%s with flags %q, want %q, %v", what, got, flags, err)
				}
			}
			known := c.label
			if c.want == "" {
				known = ""
			}
			if st.data.SELinux != known || r.volData(pub).SELinux != known || r.attributes(pub).SELinuxRelabel != (c.want == "") {
				t.Errorf("beside the staging %q, beside the target %q, attributes %+v", st.data.SELinux, r.volData(pub).SELinux, r.attributes(pub))
			}
			if !slices.Equal(r.pv.Spec.MountOptions, []string{"noatime"}) {
				t.Errorf("the spec was changed: %v", r.pv.Spec.MountOptions)
			}
		})
	}
}

// Who gives a volume to the pod's group (KEP-1682, KEP-2317).
func TestWhoOwnsTheFiles(t *testing.T) {
	t.Parallel()
	const (
		none, file, once = storagev1.NoneFSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
		rwo, rwop        = v1.ReadWriteOnce, v1.ReadWriteOncePod
		rox, rwx         = v1.ReadOnlyMany, v1.ReadWriteMany
	)
	modes := func(list ...v1.PersistentVolumeAccessMode) *plugins.Spec {
		return pvSpec("d", "h", func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = list })
	}
	for name, c := range map[string]struct {
		policy           storagev1.FSGroupPolicy
		spec             *plugins.Spec
		fsType           string
		readOnly, driver bool
		want             bool
	}{
		"none":                     {policy: none, spec: modes(rwo), fsType: "ext4"},
		"file":                     {policy: file, spec: modes(rwx), want: true},
		"file, no modes":           {policy: file, spec: modes(), want: true},
		"file, read-only":          {policy: file, spec: modes(rwo), fsType: "ext4", readOnly: true},
		"file, inline":             {policy: file, spec: inlineSpec("d"), want: true},
		"file, by the driver":      {policy: file, spec: modes(rwo), fsType: "ext4", driver: true},
		"once":                     {policy: once, spec: modes(rwo), fsType: "ext4", want: true},
		"once, one pod":            {policy: once, spec: modes(rwop), fsType: "ext4", want: true},
		"once among others":        {policy: once, spec: modes(rwx, rwo), fsType: "ext4", want: true},
		"once, no file system":     {policy: once, spec: modes(rwo)},
		"once, no modes":           {policy: once, spec: modes(), fsType: "ext4"},
		"once, many writers":       {policy: once, spec: modes(rwx), fsType: "ext4"},
		"once, many readers":       {policy: once, spec: modes(rox, rwx), fsType: "ext4"},
		"once, read-only":          {policy: once, spec: modes(rwo), fsType: "ext4", readOnly: true},
		"once, inline":             {policy: once, spec: inlineSpec("d"), fsType: "ext4", want: true},
		"once, inline, no type":    {policy: once, spec: inlineSpec("d")},
		"once, by the driver":      {policy: once, spec: modes(rwo), fsType: "ext4", driver: true},
		"none, by the driver":      {policy: none, spec: modes(rwo), fsType: "ext4", driver: true},
		"empty spec":               {policy: once, spec: &plugins.Spec{}, fsType: "ext4"},
		"empty persistent volume":  {policy: once, spec: &plugins.Spec{PV: &v1.PersistentVolume{}}, fsType: "ext4"},
		"a policy of later is the": {policy: "Later", spec: modes(rwo), fsType: "ext4", want: true}, // default's
	} {
		d := &driver{nodeCan: capabilities[csipb.NodeServiceCapability_RPC_Type]{}}
		if c.driver {
			d.nodeCan[canMountGroup] = struct{}{}
		}
		pub := &publication{
			driver: d, info: DriverInfo{FSGroupPolicy: c.policy}, request: &csipb.NodePublishVolumeRequest{Readonly: c.readOnly},
			source: source{fsType: c.fsType, ephemeral: c.spec.Volume != nil}, req: plugins.SetUpRequest{Spec: c.spec},
		}
		if got := ownedHere(pub); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Requests are made of copies: what a call does with its request changes no
// object, and what went to one pod never reaches another.
func TestRequestsShareNothing(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t, func(r *growthRig) {
		r.pv.Spec.CSI.VolumeAttributes = map[string]string{"share": "a"}
		r.pv.Spec.CSI.NodePublishSecretRef = r.pv.Spec.CSI.NodeExpandSecretRef
		r.pv.Spec.CSI.NodeStageSecretRef = r.pv.Spec.CSI.NodeExpandSecretRef
	})
	r.csiDriver(func(s *storagev1.CSIDriverSpec) {
		s.PodInfoOnMount, s.TokenRequests = ptr(true), []storagev1.TokenRequest{{Audience: "vault"}}
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	})
	inline := inlineSpec("d")
	inline.Volume.CSI.VolumeAttributes = map[string]string{"share": "a"}
	req := r.request("pod-uid")
	req.Undo = plugins.Undo{undoContext: `{"lun":"7"}`}
	for name, spec := range map[string]*plugins.Spec{"persistent": req.Spec, "inline": inline} {
		req := req
		req.Spec = spec
		pv, volume := spec.PV.DeepCopy(), spec.Volume.DeepCopy()
		pub, err := r.prepare(t.Context(), req, false)
		if err != nil {
			t.Fatal(err)
		}
		if len(pub.request.VolumeContext) != 7 { // share, five of the pod, the tokens
			t.Errorf("%s: volume context %v", name, slices.Sorted(maps.Keys(pub.request.VolumeContext)))
		}
		scribble(pub.request.VolumeContext, pub.request.PublishContext, pub.request.Secrets)
		for i := range pub.request.VolumeCapability.GetMount().GetMountFlags() {
			pub.request.VolumeCapability.GetMount().MountFlags[i] = "scribble"
		}
		if spec.PV != nil {
			st, err := r.prepareStage(t.Context(), r.fake.d, pub.info, spec, "/x/staging", req.Params, req.Undo)
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(st.request.VolumeContext, map[string]string{"share": "a"}) || st.request.Secrets["key"] != "node-password" ||
				st.request.PublishContext["lun"] != "7" {
				t.Errorf("stage: %+v", st.request)
			}
			scribble(st.request.VolumeContext, st.request.PublishContext, st.request.Secrets)
		}
		if fmt.Sprint(pv, volume) != fmt.Sprint(spec.PV.DeepCopy(), spec.Volume.DeepCopy()) {
			t.Errorf("%s: the spec was changed", name)
		}
	}
	secret, err := r.host.Secret(t.Context(), "ns", "node-secret")
	if err != nil || string(secret.Data["key"]) != "node-password" || len(secret.Data) != 1 {
		t.Errorf("the secret was changed: %v", err)
	}
}

func scribble(all ...map[string]string) {
	for _, m := range all {
		for key := range m {
			m[key] = "scribble"
		}
		if m != nil {
			m["more"] = "scribble"
		}
	}
}

// The period at which a driver is asked for the node's limit follows its
// CSIDriver object.
func TestLimitsFollowTheObject(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.serve(t, path)
	running := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	running.usable(t)
	r := newGrowthRig(t)
	r.config.Drivers = running.Drivers
	done := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- r.watchLimits(ctx) }()
	is := func(what string, seconds int64) {
		t.Helper()
		untilTrue(t, what, func() bool { return int64(running.view(fakeName).period.Seconds()) == seconds })
	}
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fakeName}}
	for _, seconds := range []int64{60, 3600, 0, 60} {
		object = object.DeepCopy()
		object.Spec.NodeAllocatableUpdatePeriodSeconds = &seconds
		if seconds == 0 {
			object.Spec.NodeAllocatableUpdatePeriodSeconds = nil
		}
		r.apply(object)
		is(fmt.Sprintf("it is %d seconds", seconds), seconds)
	}
	if err := r.store.Delete(object); err != nil {
		t.Fatal(err)
	}
	is("the object is gone", 0)
	r.apply(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "nobody.example"}, Spec: object.Spec})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(running.Status()) != 1 {
		t.Errorf("drivers: %+v", running.Status())
	}
}

func TestWhichCodeMeansAFullNode(t *testing.T) {
	t.Parallel()
	v := vaVolume()
	for code, want := range map[int32]bool{int32(codes.ResourceExhausted): true, int32(codes.OK): false, int32(codes.Internal): false, -1: false, 1 << 30: false} {
		err := reported("attach", &v, &storagev1.VolumeError{Message: "no", ErrorCode: &code})
		if errors.Is(err, ErrNodeFull) != want || errors.Is(fmt.Errorf("wrapped: %w", err), ErrNodeFull) != want {
			t.Errorf("%d: %v", code, err)
		}
	}
	if errors.Is(reported("attach", &v, &storagev1.VolumeError{Message: "no"}), ErrNodeFull) {
		t.Error("without a code")
	}
}

func TestResizeConditions(t *testing.T) {
	t.Parallel()
	const foreign v1.PersistentVolumeClaimConditionType = "example.com/Other"
	now := metav1.Unix(1000, 0)
	list := func(kinds ...v1.PersistentVolumeClaimConditionType) *v1.PersistentVolumeClaim {
		c := &v1.PersistentVolumeClaim{}
		for _, kind := range kinds {
			c.Status.Conditions = append(c.Status.Conditions, v1.PersistentVolumeClaimCondition{Type: kind, Status: v1.ConditionTrue, Message: "old"})
		}
		return c
	}
	text := func(c *v1.PersistentVolumeClaim) string {
		var all []string
		for _, one := range c.Status.Conditions {
			all = append(all, fmt.Sprintf("%s/%s/%s/%d", one.Type, one.Status, one.Message, max(0, one.LastTransitionTime.Unix())))
		}
		return strings.Join(all, " ")
	}
	const failed = v1.PersistentVolumeClaimNodeResizeError
	empty := list()
	setResizeCondition(empty, failed, "new", now)
	if got := text(empty); got != "NodeResizeError/True/new/1000" {
		t.Errorf("added to none: %s", got)
	}
	setResizeCondition(empty, failed, "new", metav1.Unix(2000, 0))
	if got := text(empty); got != "NodeResizeError/True/new/1000" {
		t.Errorf("the same again: %s", got)
	}
	both := list(foreign, failed)
	setResizeCondition(both, failed, "new", now)
	if got := text(both); got != "example.com/Other/True/old/0 NodeResizeError/True/new/1000" {
		t.Errorf("another message: %s", got)
	}
	both.Status.Conditions[1].Status = v1.ConditionFalse
	setResizeCondition(both, failed, "new", metav1.Unix(2000, 0))
	if got := text(both); got != "example.com/Other/True/old/0 NodeResizeError/True/new/2000" {
		t.Errorf("another status: %s", got)
	}
	all := list(v1.PersistentVolumeClaimResizing, foreign, v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimControllerResizeError, failed)
	all.Status.Capacity = storageList(1)
	setResizeStatus(all, v1.PersistentVolumeClaimNodeResizeInProgress)
	all.Status.AllocatedResourceStatuses["example.com/other"] = v1.PersistentVolumeClaimControllerResizeInProgress
	enlarged(all, 2)
	if got := text(all); got != "example.com/Other/True/old/0" {
		t.Errorf("in the end: %s", got)
	}
	if s := all.Status.AllocatedResourceStatuses; len(s) != 1 || claimSize(all.Status.Capacity) != 2 {
		t.Errorf("status: %+v", all.Status)
	}
}

// Without its driver a volume is not measured, and that is said.
func TestStatsWithoutTheDriver(t *testing.T) {
	t.Parallel()
	r, s, target := newStatsRig(t)
	r.fake.missing = plugins.WaitFor(socketRef("d"), errors.New("not there"))
	if _, err := r.Stats(t.Context(), target); plugins.ClassOf(err) != plugins.ClassWaiting || s.asked != nil {
		t.Errorf("%v, %v", s.asked, err)
	}
}
