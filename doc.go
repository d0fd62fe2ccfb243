// Package volumekit is the map of the module; it holds no code.
//
// volumekit does on a node what the kubelet's volume manager does, as a
// library: given the pods that a node should run, it makes every volume that
// they name ready at a path, keeps it current, and takes it away again,
// through crashes, restarts and failing storage. The program that embeds it
// brings its own pod source, API client and mounter.
//
// # How data runs
//
//	pod source ──► dsw ─────► reconciler ─────► asw ──► waits, status, events
//	(what is       (what      plan: a pure      (what
//	 asked)        should     function of one   is
//	               be there)  volume's wish     there)
//	                          and fact
//	                             │ steps
//	                             ▼
//	                          reconciler/steps: record, call, check, enter
//	                             │ calls              │ records
//	                             ▼                    ▼
//	                          plugins ──► mount   asw/journal
//
// Data moves from left to right, once. A change names the volume that it
// concerns, and only that volume is planned again: cost follows the changes,
// not the number of volumes.
//
// # Packages
//
//   - [github.com/volumekit/volumekit/volumemanager]: configuration, wiring,
//     run, waits, status. What an embedding program works with.
//   - [github.com/volumekit/volumekit/plugins]: the contract: what a volume
//     kind implements, what the embedder supplies, the paths on disk, the
//     classes of errors. What the author of a volume kind works with.
//   - plugins/configmap, secret, downwardapi, projected, emptydir, hostpath:
//     the volume kinds; plugins/builtin collects them.
//   - plugins/memory: every host interface in memory, with change notice.
//   - plugins/plugintest: the suite that every volume kind passes.
//   - [github.com/volumekit/volumekit/projection]: content from API objects,
//     written so that readers never see a mixture.
//   - [github.com/volumekit/volumekit/dsw]: the desired state, and how a claim
//     becomes a volume.
//   - [github.com/volumekit/volumekit/asw]: the actual state, and how it is
//     found again; asw/journal: the durable records.
//   - [github.com/volumekit/volumekit/reconciler]: what is to be done, and when;
//     reconciler/steps: how it is done.
//   - [github.com/volumekit/volumekit/mount]: mounts as values, and the seam to
//     the kernel; mount/hostmount: Linux; mount/mounttest: in memory, with the
//     suite that both pass.
//   - [github.com/volumekit/volumekit/csi]: volumes of CSI drivers, the only door
//     to gRPC; csi/registration: how drivers make themselves known;
//     csi/migration: in-tree specs as those of their drivers; csi/csitest: a
//     driver for tests, and its checker of the orchestrator's conduct.
//   - examples/quickstart: a whole program, pods from YAML on real mounts;
//     examples/standalone-csi: CSI without a control plane.
//
// # Rules that hold everywhere
//
// Nothing is taken down before the pod source has said once that it has told
// all its pods, and nothing whose wish is unknown. What undoing needs is
// recorded before the first side effect. Nothing is deleted through a mount. A
// step that hangs holds up its own volume and nothing else. Secrets reach no
// log, event, error, metric or record.
//
// Every wait ends with its context; no lock is held across I/O; every
// goroutine has an owner that waits for it; there is no package-level state:
// any number of managers can live in one process, each with its own root.
// Errors wrap their causes and have classes (see plugins.ClassOf) that survive
// wrapping.
package volumekit
