// Package csitest is a real CSI driver for tests: embedders test their
// orchestrators with it, and this module tests its own.
//
// It serves the Identity, Node and Controller services of CSI 1.13 and the
// kubelet's plugin registration service on unix sockets, really mounts what it
// stages and publishes, and keeps its table of volumes in a folder, so that a
// killed driver knows after its restart what it had done. A [Driver] runs in
// the test's process; cmd/csitest-driver is the same driver as a program that
// can be killed.
//
//	d, err := csitest.New(csitest.Config{
//		Dir:          dir,
//		Capabilities: csitest.AllCapabilities(),
//		AutoCreate:   true,
//	})
//	...
//	if err := d.Start(ctx); err != nil { ... }
//	defer d.Stop()
//	defer d.UndoAll()
//
//	// The next stage does its work, but its answer is lost.
//	d.Script("NodeStageVolume", csitest.Fault{Times: 1, AfterWork: true, Code: codes.DeadlineExceeded})
//
// # Conduct
//
// Without [Config.Lenient] it is a strict driver: it refuses what the
// specification lets a driver refuse (missing fields, sizes over the limits,
// publish before stage, unstage before unpublish, other arguments for the same
// path, a second path with a single-writer mode, a call whose capability it
// did not offer), with the codes that the specification names. It refuses
// nothing that an orchestrator may do.
//
// # Modes
//
// A [Mode] says what a volume is made of. All but [ModePlain] mount, which
// needs Linux 5.8 and root or a user namespace; [ModeLoop] and [ModeBlock]
// need the machine's root and loop devices. A driver is not the only thing
// that knows its mounts: they stay when it ends, as with any driver.
//
// # When not to use it
//
// It is no storage for anything that is worth keeping: table and images are
// written without fsync, which survives a killed driver but no power cut.
//
// Methods of a [Driver] are safe for concurrent use. Two drivers in a process
// share nothing; a folder belongs to one driver at a time.
package csitest
