// Package memory holds everything in memory that a [plugins.VolumeHost] reads
// and a manager is told: [Store] is a small API server without a network, with
// [Pods] as its pod source; [Recorder] collects events. All of them give notice
// of changes at once.
//
// It is the default of programs that have no API server (edge runtimes whose
// objects come from files or a controller of their own), and what tests use.
// Where there is an API server, use sources that read from it: nothing here is
// kept over a restart, and no controller runs, so that claims stay as unbound,
// attachments as detached as they were applied.
package memory
