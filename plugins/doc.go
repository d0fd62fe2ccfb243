// Package plugins is the contract between volumekit and everything that can
// provide a volume: the description of a volume ([Spec]), the interface that a
// volume kind implements ([VolumePlugin] and its optional parts), what the
// embedding program supplies ([VolumeHost]), the places on disk ([Layout]) and
// the classes of errors. It holds no volume kind and does no I/O.
//
// # Writing a plugin
//
// Implement the five methods of [VolumePlugin], add those optional interfaces
// that fit, run package plugins/plugintest over it, and give it to
// [NewRegistry]. A plugin builds no paths: each request carries them.
//
// # Rules that hold for every method
//
//   - The context ends every wait. When it ends, return soon, with an error of
//     class [ClassUncertain] unless nothing can have happened.
//   - Idempotent: the engine repeats any call whose outcome it does not know,
//     also in a new process, after a reboot and after a partial failure.
//   - Calls for different volumes run at the same time. Calls for one volume
//     (see [VolumeID]) never do, unless the plugin's [Identity] allows it.
//   - Supports and Identify get nil, empty and foreign specs, and never panic.
//   - SetUp with a context that has ended returns an error and does nothing.
//     It makes Path itself; only its parent is there.
//   - What has to go is removed with VolumeHost.Mounter.RemoveAll, never with
//     os.RemoveAll: that deletes through mounts that others made inside.
//   - Requests belong to the engine: objects in them are shared and must not
//     be changed or kept beyond the call.
//   - Errors are causes. The engine adds pod, volume and step. An error
//     without a class (see [Class]) is taken as uncertain: the volume will be
//     torn down like one that was set up. Use [Permanent], [Transient] and
//     [WaitFor] where you know better.
//   - No secret may stand in an error, a log line or [Undo].
package plugins
