package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// publication is one NodePublishVolume with all that goes with it.
type publication struct {
	source
	driver  *driver
	info    DriverInfo
	req     plugins.SetUpRequest
	request *csipb.NodePublishVolumeRequest
	// dataDir is where vol_data.json goes.
	dataDir string
	// due is when the tokens that went with it have to be renewed.
	due time.Time
}

// SetUp implements [plugins.VolumePlugin].
func (p *Plugin) SetUp(ctx context.Context, req plugins.SetUpRequest) (plugins.SetUpResult, error) {
	pub, err := p.prepare(ctx, req, false)
	if err != nil {
		return plugins.SetUpResult{}, err
	}
	owner, err := p.owner(pub) // before anything is mounted that could have the wrong one
	if err != nil {
		return plugins.SetUpResult{}, err
	}
	made, err := makeFolder(pub.dataDir)
	if err == nil {
		err = p.notMounted(ctx, pub.dataDir)
	}
	if err == nil {
		err = p.volData(pub).write(pub.dataDir)
	}
	if err != nil {
		err = plugins.Transient(fmt.Errorf("prepare the folder of the volume: %w", err))
		return plugins.SetUpResult{}, p.tidy(ctx, pub, made, err)
	}
	if err := p.publish(ctx, pub); err != nil {
		return plugins.SetUpResult{}, p.tidy(ctx, pub, made, err)
	}
	live := pub.published()
	p.remember(req.Volume, live)
	point, err := p.seenFolder(ctx, pub.request.TargetPath)
	if err != nil {
		return plugins.SetUpResult{}, err
	}
	live.mounted = point.Mounted
	p.remember(req.Volume, live)
	if !point.ReadOnly { // a driver may mount so what nobody asked to be
		err = p.own(ctx, owner, pub)
	}
	if err != nil {
		return plugins.SetUpResult{}, err
	}
	return plugins.SetUpResult{
		Path: pub.request.TargetPath, Mounted: point.Mounted, Attributes: p.attributes(pub),
		Content: plugins.Content{RefreshAt: p.nextPublish(pub)}, Size: sizeNow(req),
	}, nil
}

// prepare finds out all that a publish needs. Nothing on the node changes.
func (p *Plugin) prepare(ctx context.Context, req plugins.SetUpRequest, block bool) (*publication, error) {
	s, err := sourceOf(req.Spec, req.Volume.Pod)
	if err != nil {
		return nil, err
	}
	info, err := driverInfo(ctx, p.host, s.driver)
	if err != nil {
		return nil, err
	}
	if err := p.lifecycleAllowed(s, info); err != nil {
		return nil, err
	}
	d, err := p.drivers.driver(ctx, s.driver)
	if err != nil {
		return nil, err
	}
	pub := &publication{source: s, driver: d, info: info, req: req, dataDir: req.Path}
	target := filepath.Join(req.Path, mountDir)
	if block {
		pub.dataDir = p.places().blockData(req.Volume.Name)
		target = p.places().blockPublish(req.Volume.Name, req.Volume.Pod)
	}
	readOnly := s.readOnly || req.Params.ReadOnly
	capability, err := p.capability(d, s, req.Spec, req.Params.FSGroup, p.label(info, req.Params))
	if err != nil {
		return nil, err
	}
	if m, known := capability.GetMount(), p.stagedAs(s, req.DeviceMountPath); m != nil && known.Flags != "" && !s.ephemeral {
		m.FsType, m.MountFlags = known.FSType, known.flags() // those that it is staged with
	}
	pub.request = &csipb.NodePublishVolumeRequest{
		VolumeId: s.handle, TargetPath: target, VolumeCapability: capability, Readonly: readOnly,
	}
	if d.nodeCan.has(canStage) && !s.ephemeral {
		pub.request.StagingTargetPath = req.DeviceMountPath
	}
	if pub.request.PublishContext, err = publishContext(req.Undo); err != nil {
		return nil, err
	}
	return pub, p.fill(ctx, pub)
}

// fill adds what has to be read for each publish.
func (p *Plugin) fill(ctx context.Context, pub *publication) error {
	var err error
	r, spec, pod := pub.request, pub.req.Spec, pub.req.Object
	if pod == nil {
		return plugins.Permanent(errors.New("there is no pod"))
	}
	if r.Secrets, err = readSecret(ctx, p.host, publishSecret(spec, pod)); err != nil {
		return err
	}
	if r.VolumeContext, err = volumeAttributes(spec); err != nil {
		return err
	}
	if pub.info.PodInfoOnMount {
		r.VolumeContext = podInfo(r.VolumeContext, pod, pub.ephemeral)
	}
	if len(pub.info.Tokens) == 0 {
		return nil
	}
	text, due, err := p.tokens.encoded(ctx, pub.req.Volume, pod, pub.info.Tokens)
	if err != nil {
		return err
	}
	pub.due = due
	to := &r.VolumeContext
	if pub.info.TokensInSecrets {
		to = &r.Secrets
	}
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[tokensKey] = text
	return nil
}

// lifecycleAllowed checks that the driver has opted into what the volume is. An
// inline volume's attributes come from whoever writes pods: a driver has to
// say that it takes them.
func (p *Plugin) lifecycleAllowed(s source, info DriverInfo) error {
	allowed, mode := info.Persistent, lifecyclePersistent
	if s.ephemeral {
		allowed, mode = info.Ephemeral, lifecycleEphemeral
	}
	if allowed {
		return nil
	}
	if p.host.CSIDrivers == nil {
		return &plugins.MissingError{Field: "CSIDrivers", Need: "an inline volume of driver " + s.driver}
	}
	return plugins.WaitFor(plugins.Ref{Kind: plugins.KindCSIDriver, Name: s.driver},
		fmt.Errorf("the CSIDriver object of %s has to list %s in volumeLifecycleModes", s.driver, mode))
}

// capability is that of stage and publish.
func (p *Plugin) capability(
	d *driver, s source, spec *plugins.Spec, group *int64, label string,
) (*csipb.VolumeCapability, error) {
	mode, err := accessModeOf(spec.AccessModes(), d.nodeCan.has(canMultiWriter))
	if err != nil {
		return nil, err
	}
	text := ""
	if group != nil && d.nodeCan.has(canMountGroup) {
		text = strconv.FormatInt(*group, 10)
	}
	return capabilityOf(spec, s.fsType, mode, mountFlags(spec, label), text), nil
}

// label is the SELinux label that a volume is mounted with, if its driver can.
func (p *Plugin) label(info DriverInfo, params plugins.Params) string {
	if !info.SELinuxMount {
		return ""
	}
	return params.SELinuxLabel
}

// publishContext is what attaching gave, as it is recorded.
func publishContext(undo plugins.Undo) (map[string]string, error) {
	text := undo[undoContext]
	if text == "" {
		return nil, nil
	}
	var values map[string]string
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, plugins.Permanent(errors.New("the recorded publish context is damaged"))
	}
	return values, nil
}

// publishSecret is the reference of the secret for a publish.
func publishSecret(spec *plugins.Spec, pod *v1.Pod) *secretRef {
	if spec.PV != nil {
		return refOf(spec.PV.Spec.CSI.NodePublishSecretRef)
	}
	if r := spec.Volume.CSI.NodePublishSecretRef; r != nil && r.Name != "" {
		return &secretRef{pod.Namespace, r.Name}
	}
	return nil
}

// publish calls the driver. One that denies that the volume is staged, which we
// believe it is, gets it staged once more.
func (p *Plugin) publish(ctx context.Context, pub *publication) error {
	err := p.callPublish(ctx, pub)
	if answered(err) == codes.AlreadyExists {
		return p.publishedOtherwise(ctx, pub, err)
	}
	if answered(err) != codes.FailedPrecondition || pub.request.StagingTargetPath == "" || !p.mayRestage(pub) {
		return err
	}
	if again := p.restage(ctx, pub); again != nil {
		return errors.Join(err, again)
	}
	return p.callPublish(ctx, pub)
}

// publishedOtherwise handles a volume that is published at its target with other
// arguments. What this process tried and did not finish is taken back and
// published anew: no container has seen it. What an earlier process left may be
// in use, and stays.
func (p *Plugin) publishedOtherwise(ctx context.Context, pub *publication, cause error) error {
	v := pub.req.Volume
	p.mu.Lock()
	own := p.tried[v]
	p.mu.Unlock()
	if !own && pub.req.Again {
		p.host.Log.Info("volume is published with other arguments than today's, and may be in use", "volume", v.Name, "pod", v.Pod)
		return nil
	}
	if _, live := p.recall(v); live {
		return cause
	}
	undo := plugins.TearDownRequest{Target: pub.req.Target}
	if err := p.unpublish(ctx, undo, pub.source.driver, pub.handle, pub.request.TargetPath); err != nil {
		return fmt.Errorf("take back a publish with other arguments: %w", err)
	}
	return p.callPublish(ctx, pub)
}

func (p *Plugin) callPublish(ctx context.Context, pub *publication) error {
	if err := makeParents(pub.request.TargetPath); err != nil {
		return err
	}
	if err := p.host.Faults.At(FaultPrepared); err != nil {
		return plugins.Transient(err)
	}
	_, err := call(ctx, pub.driver, nodePublish, pub.handle, pub.request, pub.driver.node.NodePublishVolume)
	if err != nil && answered(err) != codes.AlreadyExists {
		p.mu.Lock()
		p.tried[pub.req.Volume] = true
		p.mu.Unlock()
	}
	return p.called(err)
}

// called is the fail point behind a call.
func (p *Plugin) called(err error) error {
	if err != nil {
		return err
	}
	return plugins.Uncertain(p.host.Faults.At(FaultCalled))
}

// mayRestage reports whether a volume may be staged again: once for each
// connection to its driver.
func (p *Plugin) mayRestage(pub *publication) bool {
	key := storageName(pub.source.driver, pub.handle)
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, done := p.restaged[key]; done && at == pub.driver.generation {
		return false
	}
	p.restaged[key] = pub.driver.generation
	return true
}

// published is what is kept of a publish.
func (pub *publication) published() published {
	return published{
		source: pub.source, target: pub.request.TargetPath, staging: pub.request.StagingTargetPath,
		block: pub.request.VolumeCapability.GetBlock() != nil, pod: pub.req.Pod, spec: pub.req.Spec,
	}
}

// seen checks that the driver did what it said.
func (p *Plugin) seen(ctx context.Context, target string) (mount.Point, error) {
	point, err := p.host.Mounter.Inspect(ctx, target)
	switch {
	case err != nil:
		return point, plugins.Uncertain(fmt.Errorf("look at what the driver published: %w", err))
	case !point.Exists:
		return point, plugins.Uncertain(fmt.Errorf("the driver reported the volume published, but nothing is at %s", target))
	case point.Corrupt != nil:
		return point, plugins.Uncertain(fmt.Errorf("the driver reported the volume published, but it does not work: %w", point.Corrupt))
	}
	return point, nil
}

// seenFolder is seen for a file system: what is there has to be a folder, and
// not a link that leads to one.
func (p *Plugin) seenFolder(ctx context.Context, target string) (mount.Point, error) {
	point, err := p.seen(ctx, target)
	if err == nil && !point.IsDir {
		err = plugins.Uncertain(fmt.Errorf("the driver published %s, which is no folder", target))
	}
	return point, err
}

// tidy takes away what a publish that certainly left nothing behind had
// prepared, if the volume is new. It returns err, and what went wrong.
func (p *Plugin) tidy(ctx context.Context, pub *publication, made bool, err error) error {
	if pub.req.Again || plugins.ClassOf(err) == plugins.ClassUncertain {
		return err
	}
	if !made {
		if _, known := p.recall(pub.req.Volume); known {
			return err
		}
	}
	if left := p.clear(ctx, pub.dataDir, pub.request.TargetPath); left != nil {
		return errors.Join(err, left)
	}
	p.drop(pub.req.Volume) // nothing may ever come that would do it
	return err
}

// attributes say how containers may treat the volume.
func (p *Plugin) attributes(pub *publication) plugins.Attributes {
	readOnly := pub.request.Readonly
	return plugins.Attributes{
		ReadOnly: pub.source.readOnly, Managed: !readOnly,
		SELinuxRelabel: !readOnly && p.label(pub.info, pub.req.Params) == "",
	}
}

// volData is what the file beside the target says.
func (p *Plugin) volData(pub *publication) volData {
	data := volData{
		SpecName: pub.req.Volume.Name, Handle: pub.handle, Driver: pub.source.driver, Node: string(p.host.NodeName),
		Attachment: AttachmentName(pub.source.driver, pub.handle, p.host.NodeName),
		Lifecycle:  lifecyclePersistent, FSType: pub.fsType, DevicePath: pub.request.PublishContext["devicePath"],
	}
	switch {
	case pub.ephemeral:
		data.Lifecycle = lifecycleEphemeral
	case pub.request.VolumeCapability.GetBlock() != nil:
		data.Lifecycle = ""
	default:
		data.SELinux = p.label(pub.info, pub.req.Params)
	}
	return data
}

// makeFolder makes a folder whose parent is there, and says whether it had to.
// What is there has to be a folder itself, not a link to one.
func makeFolder(path string) (made bool, err error) {
	err = os.Mkdir(path, 0o750)
	if !errors.Is(err, fs.ErrExist) {
		return err == nil, err
	}
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no folder", path)
	}
	return false, err
}

// makeParents makes the folders above a path.
func makeParents(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return plugins.Transient(fmt.Errorf("make the folder for %s: %w", path, err))
	}
	return nil
}
