// Package checker watches how an orchestrator (CO) treats a CSI driver and
// says which rules of the CSI specification it broke.
//
// It is made of one state machine, [Checker], fed with the requests and the
// answers of one driver. Feed it through [Checker.UnaryServer] at the driver,
// through [Checker.UnaryClient] at the orchestrator, or by hand with
// [Checker.Begin] and [Call.End]. From these alone it keeps its own model:
// which capabilities the driver reported, to which nodes a volume is attached,
// at which path it is staged, at which targets it is published, and for each of
// these whether that is certain or whether only an answer that says nothing
// (deadline, lost connection, INTERNAL, ...) was seen.
//
// [Rules] lists what is checked, with the section of the specification. A rule
// that is only good custom is optional and off unless [Options] asks for it.
// It blames the orchestrator only: a driver that answers wrongly, late or not
// at all never causes a violation by itself.
//
// # Where to put it
//
// One checker serves one driver, that is one Node service and, where calls to
// it pass by here too, its Controller service. At the server it must be the
// outermost interceptor, so that it sees the codes that injected faults return.
// What it cannot see it must be told: capabilities asked on another way
// ([Options.Node] and its neighbours), an attach step done elsewhere
// ([Options.AttachUnseen]), a restarted driver ([Checker.Restarted]), a
// restarted orchestrator ([Checker.COrestarted]), a rebooted node
// ([Checker.NodeRebooted]).
//
// # What it keeps
//
// Per volume that is attached, staged or published: the request without its
// secrets. Per process: up to 4096 recent entries each of created volumes,
// expanded volumes, node ids and target paths, up to 256 secret values (needed
// to find them again in plain fields; they never appear in a [Violation]), up
// to [Options.MaxViolations] violations, one counter per RPC. A volume that is
// torn down is forgotten, so a checker may watch for days.
//
// # When not to use it
//
// It does not judge the driver; csi-sanity does. It does not see streams (the
// SnapshotMetadata service), and it adds a walk over each request, so it
// belongs into tests, test clusters and debugging, not into a production path
// that counts microseconds.
package checker
