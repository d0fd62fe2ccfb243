package migration

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

func TestInline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source   string
		want     string // the persistent volume, but for the volume mode
		readOnly bool
	}{
		"gce": {
			`gcePersistentDisk: {pdName: d1, fsType: ext4, partition: 2, readOnly: true}`,
			`{metadata: {name: pd.csi.storage.gke.io-d1}, spec: {accessModes: [ReadOnlyMany], csi: {
				driver: pd.csi.storage.gke.io, volumeHandle: projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d1,
				fsType: ext4, readOnly: true, volumeAttributes: {partition: "2"}}}}`, true,
		},
		"gce, sparse": {
			`gcePersistentDisk: {pdName: d1}`,
			`{metadata: {name: pd.csi.storage.gke.io-d1}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: pd.csi.storage.gke.io, volumeHandle: projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d1,
				volumeAttributes: {partition: ""}}}}`, false,
		},
		"ebs": {
			`awsElasticBlockStore: {volumeID: "aws://us-1a/vol-1", fsType: xfs, partition: 1, readOnly: true}`,
			`{metadata: {name: ebs.csi.aws.com-vol-1}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: ebs.csi.aws.com, volumeHandle: vol-1, fsType: xfs, readOnly: true, volumeAttributes: {partition: "1"}}}}`, true,
		},
		"ebs, sparse": {
			`awsElasticBlockStore: {volumeID: vol-1}`,
			`{metadata: {name: ebs.csi.aws.com-vol-1}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: ebs.csi.aws.com, volumeHandle: vol-1, volumeAttributes: {partition: "0"}}}}`, false,
		},
		"cinder": {
			`cinder: {volumeID: c1, fsType: ext4, readOnly: true, secretRef: {name: s}}`,
			`{metadata: {name: cinder.csi.openstack.org-c1}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: cinder.csi.openstack.org, volumeHandle: c1, fsType: ext4, readOnly: true, volumeAttributes: {}}}}`, true,
		},
		"cinder, sparse": {
			`cinder: {volumeID: c1}`,
			`{metadata: {name: cinder.csi.openstack.org-c1}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: cinder.csi.openstack.org, volumeHandle: c1, volumeAttributes: {}}}}`, false,
		},
		"azureDisk": {
			`azureDisk: {diskName: d, diskURI: /subscriptions/s/disks/d, kind: Managed, cachingMode: ReadOnly, fsType: ext4, readOnly: true}`,
			`{metadata: {name: "~subscriptions~s~disks~d"}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: disk.csi.azure.com, volumeHandle: /subscriptions/s/disks/d, fsType: ext4, readOnly: true,
				volumeAttributes: {kind: Managed, cachingmode: ReadOnly, fstype: ext4}}}}`, true,
		},
		"azureDisk, sparse": {
			`azureDisk: {diskURI: /subscriptions/s/disks/d}`,
			`{metadata: {name: "~subscriptions~s~disks~d"}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: disk.csi.azure.com, volumeHandle: /subscriptions/s/disks/d, volumeAttributes: {kind: Managed}}}}`, false,
		},
		"azureFile": {
			`azureFile: {secretName: azure-storage-account-acct-secret, shareName: sh, readOnly: true}`,
			`{metadata: {name: "#acct#sh#v#ns"}, spec: {accessModes: [ReadWriteMany], csi: {
				driver: file.csi.azure.com, volumeHandle: "#acct#sh#v#ns", readOnly: true, volumeAttributes: {sharename: sh},
				nodeStageSecretRef: {name: azure-storage-account-acct-secret, namespace: ns}}}}`, true,
		},
		"azureFile, sparse": {
			`azureFile: {secretName: s, shareName: sh/sub}`,
			`{metadata: {name: "#s#sh~sub#v#ns"}, spec: {accessModes: [ReadWriteMany], csi: {
				driver: file.csi.azure.com, volumeHandle: "#s#sh/sub#v#ns", volumeAttributes: {sharename: sh/sub},
				nodeStageSecretRef: {name: s, namespace: ns}}}}`, false,
		},
		"vsphere": {
			`vsphereVolume: {volumePath: "[store1] kubevols/d.vmdk", fsType: ext4, storagePolicyID: i}`,
			`{metadata: {name: "csi.vsphere.vmware.com-[store1] kubevols~d.vmdk"}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: csi.vsphere.vmware.com, volumeHandle: "[store1] kubevols/d.vmdk", fsType: ext4, volumeAttributes: {}}}}`, false,
		},
		"portworx": { // the library leaves csi.readOnly out
			`portworxVolume: {volumeID: p1, fsType: ext4, readOnly: true}`,
			`{metadata: {name: pxd.portworx.com-p1}, spec: {accessModes: [ReadOnlyMany], csi: {
				driver: pxd.portworx.com, volumeHandle: p1, fsType: ext4, readOnly: true, volumeAttributes: {}}}}`, true,
		},
		"portworx, sparse": {
			`portworxVolume: {volumeID: p1}`,
			`{metadata: {name: pxd.portworx.com-p1}, spec: {accessModes: [ReadWriteOnce], csi: {
				driver: pxd.portworx.com, volumeHandle: p1, volumeAttributes: {}}}}`, false,
		},
	} {
		spec, pod := inline(t, c.source)
		before, podBefore := spec.Volume.DeepCopy(), pod.DeepCopy()
		got, err := translator(t, Config{}).Translate(t.Context(), spec, pod)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		pv, mode := parse[v1.PersistentVolume](t, strings.ReplaceAll(c.want, "\t", " ")), v1.PersistentVolumeFilesystem
		pv.Spec.VolumeMode = &mode
		want := &plugins.Spec{Volume: spec.Volume, PV: pv, ReadOnly: c.readOnly, Migrated: true}
		if !same(got, want) {
			t.Errorf("%s: %s\nwant %s", name, show(got), show(want))
		}
		if got.Kind() != "csi" || got.Name() != pv.Name || plugins.CheckName(got.Name()) != nil {
			t.Errorf("%s: kind %s, name %q", name, got.Kind(), got.Name())
		}
		if !reflect.DeepEqual(spec, &plugins.Spec{Volume: before}) || !reflect.DeepEqual(pod, podBefore) {
			t.Errorf("%s: the argument was changed", name)
		}
	}
}

// same compares specs; an empty map of attributes is like none.
func same(a, b *plugins.Spec) bool {
	for _, s := range []*plugins.Spec{a, b} {
		if s.PV != nil && s.PV.Spec.CSI != nil && len(s.PV.Spec.CSI.VolumeAttributes) == 0 {
			s.PV.Spec.CSI.VolumeAttributes = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

func show(s *plugins.Spec) string {
	if s == nil || s.PV == nil {
		return fmt.Sprintf("%+v", s)
	}
	return fmt.Sprintf("readOnly %v, %q %+v, csi %+v", s.ReadOnly, s.PV.Name, s.PV.Spec, s.PV.Spec.CSI)
}

func TestPersistentVolume(t *testing.T) {
	t.Parallel()
	const (
		full = `
metadata:
  name: pv-1
  uid: pv-uid
  labels: {color: red}
  annotations: {volume.beta.kubernetes.io/mount-options: "noatime,nodev"%s}
spec:
  accessModes: [%s]
  capacity: {storage: 5Gi}
  claimRef: {namespace: ns, name: c, uid: c-uid}
  mountOptions: [hard]
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: %s, operator: In, values: [z1]}, {key: other, operator: Exists}]}]}}
  persistentVolumeReclaimPolicy: Retain
  storageClassName: sc
  volumeMode: Block
  %s
status: {phase: Bound}
`
		zone = "topology.kubernetes.io/zone"
	)
	for name, c := range map[string]struct {
		source, csi     string
		modes, newModes string
		topology        string
		annotations     string
	}{
		"gce": {
			source: `gcePersistentDisk: {pdName: d1, fsType: ext4, partition: 2, readOnly: true}`,
			csi: `{driver: pd.csi.storage.gke.io, volumeHandle: projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d1, fsType: ext4,
				readOnly: true, volumeAttributes: {partition: "2"}}`,
			modes: "ReadWriteMany", newModes: "ReadWriteOnce", topology: "topology.gke.io/zone",
		},
		"ebs": {
			source:   `awsElasticBlockStore: {volumeID: "aws:///vol-1", fsType: xfs, partition: 1, readOnly: true}`,
			csi:      `{driver: ebs.csi.aws.com, volumeHandle: vol-1, fsType: xfs, readOnly: true, volumeAttributes: {partition: "1"}}`,
			topology: "topology.ebs.csi.aws.com/zone",
		},
		"cinder": {
			source:   `cinder: {volumeID: c1, fsType: ext4, readOnly: true, secretRef: {name: s, namespace: sn}}`,
			csi:      `{driver: cinder.csi.openstack.org, volumeHandle: c1, fsType: ext4, readOnly: true}`,
			topology: "topology.cinder.csi.openstack.org/zone",
		},
		"azureDisk": {
			source: `azureDisk: {diskName: d, diskURI: /s/d, kind: Managed, cachingMode: None, fsType: ext4, readOnly: true}`,
			csi: `{driver: disk.csi.azure.com, volumeHandle: /s/d, fsType: ext4, readOnly: true,
				volumeAttributes: {kind: Managed, cachingmode: None, fstype: ext4}}`,
		},
		"azureFile": {
			source: `azureFile: {secretName: s, shareName: sh, secretNamespace: sn, readOnly: true}`,
			csi: `{driver: file.csi.azure.com, volumeHandle: "rg#s#sh#pv-1#sn", readOnly: true, volumeAttributes: {sharename: sh},
				nodeStageSecretRef: {name: s, namespace: sn}}`,
			annotations: `, kubernetes.io/azure-file-resource-group: rg`,
		},
		"azureFile, claim's namespace": {
			source: `azureFile: {secretName: s, shareName: sh}`,
			csi: `{driver: file.csi.azure.com, volumeHandle: "#s#sh#pv-1#ns", volumeAttributes: {sharename: sh},
				nodeStageSecretRef: {name: s, namespace: ns}}`,
		},
		"vsphere": {
			source: `vsphereVolume: {volumePath: "[s] d.vmdk", fsType: ext4, storagePolicyName: gold, storagePolicyID: i}`,
			csi: `{driver: csi.vsphere.vmware.com, volumeHandle: "[s] d.vmdk", fsType: ext4,
				volumeAttributes: {storagepolicyname: gold}}`,
			topology: "topology.csi.vmware.com/zone",
		},
		"portworx": { // the library leaves csi.readOnly out
			source: `portworxVolume: {volumeID: p1, fsType: ext4, readOnly: true}`,
			csi: `{driver: pxd.portworx.com, volumeHandle: p1, fsType: ext4, readOnly: true,
				controllerPublishSecretRef: {name: s, namespace: sn}, nodeStageSecretRef: {name: s, namespace: sn},
				nodePublishSecretRef: {name: s, namespace: sn}, controllerExpandSecretRef: {name: s, namespace: sn},
				nodeExpandSecretRef: {name: s, namespace: sn}}`,
			annotations: `, openstorage.io/auth-secret-name: s, openstorage.io/auth-secret-namespace: sn`,
		},
	} {
		orElse := func(a, b string) string {
			if a == "" {
				return b
			}
			return a
		}
		modes := orElse(c.modes, "ReadWriteOnce, ReadOnlyMany")
		pv := parse[v1.PersistentVolume](t, fmt.Sprintf(full, c.annotations, modes, zone, c.source))
		want := parse[v1.PersistentVolume](t, fmt.Sprintf(full, c.annotations,
			orElse(c.newModes, modes), orElse(c.topology, zone), "csi: "+strings.ReplaceAll(c.csi, "\t", " ")))
		spec := &plugins.Spec{PV: pv, Claim: &v1.PersistentVolumeClaim{}, ReadOnly: true}
		before := pv.DeepCopy()
		got, err := translator(t, Config{}).Translate(t.Context(), spec, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !same(got, &plugins.Spec{PV: want, Claim: spec.Claim, ReadOnly: true, Migrated: true}) {
			t.Errorf("%s: %s\nwant %+v, csi %+v", name, show(got), want.Spec, want.Spec.CSI)
		}
		if options := got.MountOptions(); !reflect.DeepEqual(options, []string{"noatime", "nodev"}) {
			t.Errorf("%s: mount options %v", name, options)
		}
		if !reflect.DeepEqual(pv, before) || spec.Migrated {
			t.Errorf("%s: the argument was changed", name)
		}
	}
}

// TestSparsePersistentVolume translates what has a source's id and nothing
// else, not even a name.
func TestSparsePersistentVolume(t *testing.T) {
	t.Parallel()
	for _, source := range []string{
		`gcePersistentDisk: {pdName: d1}`, `awsElasticBlockStore: {volumeID: vol-1}`, `cinder: {volumeID: c1}`,
		`azureDisk: {diskURI: /s/d}`, `azureFile: {secretName: s, shareName: sh, secretNamespace: sn}`,
		`vsphereVolume: {volumePath: p}`, `portworxVolume: {volumeID: p1}`,
	} {
		pv := parse[v1.PersistentVolume](t, "spec: {"+source+"}")
		got, err := translator(t, Config{}).Translate(t.Context(), &plugins.Spec{PV: pv}, nil)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got.ReadOnly || got.PV.Spec.CSI.ReadOnly || got.Kind() != "csi" || got.Mode() != v1.PersistentVolumeFilesystem ||
			got.PV.Spec.Capacity != nil || got.PV.Spec.NodeAffinity != nil || len(got.AccessModes()) > 0 {
			t.Errorf("%s: %s", source, show(got))
		}
	}
}

// TestTopologyFromLabels reads the zone where old provisioners wrote it.
func TestTopologyFromLabels(t *testing.T) {
	t.Parallel()
	pv := parse[v1.PersistentVolume](t, `
metadata: {name: pv, labels: {topology.kubernetes.io/zone: us-central1-a__us-central1-b}}
spec: {gcePersistentDisk: {pdName: d}}`)
	got, err := translator(t, Config{}).Translate(t.Context(), &plugins.Spec{PV: pv}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := parse[v1.VolumeNodeAffinity](t, `required: {nodeSelectorTerms: [{matchExpressions: [
  {key: topology.gke.io/zone, operator: In, values: [us-central1-a, us-central1-b]}]}]}`)
	if handle := got.PV.Spec.CSI.VolumeHandle; handle != "projects/UNSPECIFIED/regions/us-central1/disks/d" ||
		!reflect.DeepEqual(got.PV.Spec.NodeAffinity, want) {
		t.Errorf("%s, %+v", handle, got.PV.Spec.NodeAffinity)
	}
}

// TestUnchanged returns the same pointer for what has no driver.
func TestUnchanged(t *testing.T) {
	t.Parallel()
	specs := []*plugins.Spec{nil, {}, {Volume: &v1.Volume{}}, {PV: &v1.PersistentVolume{}}}
	for _, source := range []string{
		"rbd: {image: i, monitors: [m]}", "cephfs: {monitors: [m]}", "nfs: {server: s, path: /p}",
		"iscsi: {iqn: i, lun: 0, targetPortal: t}", "csi: {driver: ebs.csi.aws.com}", "fc: {lun: 1}", "hostPath: {path: /p}",
	} {
		spec, _ := inline(t, source)
		source = strings.Replace(source, "aws.com}", "aws.com, volumeHandle: h}", 1)
		specs = append(specs, spec, &plugins.Spec{PV: parse[v1.PersistentVolume](t, "spec: {"+source+"}")})
	}
	tr := translator(t, Config{Policy: WhenInstalled, Drivers: &installed{}, Keep: func(*plugins.Spec) bool {
		t.Error("Keep was asked")
		return false
	}})
	for _, spec := range specs {
		for _, pod := range []*v1.Pod{nil, {}} {
			if got, err := tr.Translate(t.Context(), spec, pod); err != nil || got != spec {
				t.Errorf("%s: %v, %v", spec.Kind(), got, err)
			}
		}
	}
}

// TestTwice translates a translated spec: it is one of a CSI driver.
func TestTwice(t *testing.T) {
	t.Parallel()
	tr := translator(t, Config{})
	spec, pod := inline(t, "cinder: {volumeID: c}")
	once, err := tr.Translate(t.Context(), spec, pod)
	if err != nil {
		t.Fatal(err)
	}
	if twice, err := tr.Translate(t.Context(), once, pod); err != nil || twice != once {
		t.Errorf("%v, %v", twice, err)
	}
}

// TestSameDisk looks at the volumes of one pod that name one disk.
func TestSameDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		b    string
		name string // of b; empty if the pod contradicts itself
	}{
		"alike":            {`{name: b, awsElasticBlockStore: {volumeID: vol-1, fsType: ext4}}`, "ebs.csi.aws.com-vol-1"},
		"other form of id": {`{name: b, awsElasticBlockStore: {volumeID: "aws://z/vol-1", fsType: ext4}}`, "ebs.csi.aws.com-vol-1"},
		"read-only":        {`{name: b, awsElasticBlockStore: {volumeID: vol-1, fsType: ext4, readOnly: true}}`, "ebs.csi.aws.com-vol-1"},
		"other disk":       {`{name: b, awsElasticBlockStore: {volumeID: vol-2, fsType: ext4}}`, "ebs.csi.aws.com-vol-2"},
		"other kind":       {`{name: b, cinder: {volumeID: vol-1, fsType: ext4}}`, "cinder.csi.openstack.org-vol-1"},
		"other partition":  {`{name: b, awsElasticBlockStore: {volumeID: vol-1, fsType: ext4, partition: 1}}`, ""},
		"other fs":         {`{name: b, awsElasticBlockStore: {volumeID: vol-1, fsType: xfs}}`, ""},
	} {
		const a = `{name: a, awsElasticBlockStore: {volumeID: vol-1, fsType: ext4}}`
		for _, which := range []string{"a", "b"} {
			spec, pod := podSpec(t, which, a, c.b, `{name: c, awsElasticBlockStore: {volumeID: "aws://"}}`)
			got, err := translator(t, Config{}).Translate(t.Context(), spec, pod)
			if c.name == "" {
				if plugins.ClassOf(err) != plugins.ClassPermanent || !strings.Contains(err.Error(), "same storage in another way") {
					t.Errorf("%s, %s: %v, %v", name, which, got, err)
				}
				continue
			}
			want := c.name
			if which == "a" {
				want = "ebs.csi.aws.com-vol-1"
			}
			if err != nil || got.Name() != want || got.ReadOnly != (which == "b" && name == "read-only") {
				t.Errorf("%s, %s: %v, %v", name, which, got, err)
			}
		}
	}
	// The share of one pod under two names stays two volumes.
	names := map[string]bool{}
	for _, which := range []string{"a", "b"} {
		spec, pod := podSpec(t, which, `{name: a, azureFile: {secretName: s, shareName: sh}}`, `{name: b, azureFile: {secretName: s, shareName: sh}}`)
		got, err := translator(t, Config{}).Translate(t.Context(), spec, pod)
		if err != nil {
			t.Fatal(err)
		}
		names[got.Name()] = true
	}
	if len(names) != 2 {
		t.Error(names)
	}
}

// TestShared translates the same objects from several goroutines; the race
// detector sees whether somebody writes.
func TestShared(t *testing.T) {
	t.Parallel()
	tr := translator(t, Config{})
	spec, pod := inline(t, "azureDisk: {diskURI: /s/d, readOnly: true}")
	pv := &plugins.Spec{PV: parse[v1.PersistentVolume](t, `
metadata: {name: pv, labels: {topology.kubernetes.io/zone: z}}
spec: {awsElasticBlockStore: {volumeID: vol-1}, nodeAffinity: {required: {nodeSelectorTerms: [{}]}}, accessModes: [ReadWriteOnce]}`)}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				for _, s := range []*plugins.Spec{spec, pv} {
					got, err := tr.Translate(context.Background(), s, pod)
					if err != nil {
						t.Error(err)
						return
					}
					got.PV.Spec.AccessModes[0] = "changed" // the caller's own
					got.PV.Spec.CSI.VolumeAttributes["x"] = "y"
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkTranslate(b *testing.B) {
	tr := translator(b, Config{})
	pv := &plugins.Spec{PV: parse[v1.PersistentVolume](b, "{metadata: {name: p}, spec: {awsElasticBlockStore: {volumeID: vol-1}}}")}
	csi := &plugins.Spec{PV: parse[v1.PersistentVolume](b, "{metadata: {name: p}, spec: {csi: {driver: d, volumeHandle: h}}}")}
	for name, spec := range map[string]*plugins.Spec{"inTree": pv, "other": csi} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tr.Translate(b.Context(), spec, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
