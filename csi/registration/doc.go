// Package registration finds the plugins of a node by their sockets, as the
// kubelet's plugin watcher does: a plugin puts a unix socket into a folder
// (plugins_registry) and answers the registration protocol v1
// (k8s.io/kubelet/pkg/apis/pluginregistration/v1) on it. A [Watcher] notices
// the socket, asks what the plugin is, hands it to the [Handler] for its type
// and tells the plugin how that went. When the socket goes, so does the
// registration.
//
// It is for programs that play the kubelet's part for CSI drivers, device
// plugins or DRA plugins. A program that knows its drivers' endpoints needs no
// watcher; of this package it can use [Info.Check], [PickVersion] and
// [DialSocket].
//
// # What is watched
//
// Every folder below the watched one, to any depth, up to a bound on their
// number. Names that begin with a dot are ignored on every level, and so is
// what is neither a socket nor a symbolic link to one; links to folders are not
// followed. The kernel's notices (inotify, on Linux) only say when to look: the
// folder is then read as a whole, and what is there, compared by path, device,
// inode and time, is what counts. It is read by period too. Lost notices, a
// full queue, renames and a folder that was deleted and made again, all end the
// same way: at the next look, the state is right. Where nothing can be watched,
// the periodic look remains, and [Status] says so.
//
// # Instances
//
// Each registration is an [Instance], told apart by its generation. The same
// plugin name may be registered by several at once, behind different sockets or
// one after another behind the same one; which of them is used is the handler's
// business. Deregister always names one instance, so the end of an old one
// never harms a newer one of the same name.
//
// # Order
//
// For one path, handler calls and calls to the plugin never overlap. For
// different paths they run side by side. In particular:
//
//   - Deregister follows the return of the Register of the same instance, and
//     comes at most once for it. There is none for a Register that failed.
//   - A socket that was made anew at the same path, or was renamed while it was
//     registered: the new instance is registered and the plugin is told, then
//     the old instance is deregistered, without a gap. If the first attempt
//     with the new socket fails, the old instance goes then, for its socket no
//     longer exists. A look that falls between the removal and the new socket
//     finds no socket: the order is then Deregister, Register.
//   - A socket that has gone: Deregister, without connecting to anything.
//   - Register succeeded but the plugin does not take the notice of it:
//     Deregister, and a new attempt later. If it could not be told because its
//     socket was removed or replaced meanwhile, the two rules above apply.
//   - When [Watcher.Run] ends nothing is deregistered: that we stop says
//     nothing about the plugins.
//
// # Attempts
//
// A failed attempt is repeated after 50 ms, doubling up to two minutes, and at
// once when the socket is replaced or its permissions change. A socket appears
// in the folder when the plugin binds it, a moment before it listens: while
// the file is younger than a second, a refused connection is tried again within
// milliseconds.
//
// The connection over which a plugin was registered is kept open without use.
// When it is lost, the socket is reported as stale and asked again, with the
// usual backoff: a server that died and left its socket is seen that way, and
// so is one that came back behind the same file. If it then says the same as
// before, it is told that it is registered, and the handler hears nothing;
// otherwise the new instance replaces the old. An instance whose server does
// not answer stays registered as long as its socket is there: whether its
// endpoint works is for the handler to see.
//
// # Trust
//
// Whatever a plugin says is checked before anyone sees it: see [Info.Check].
// The size of answers, the number of sockets, of folders and of attempts at a
// time are bounded, every call has a deadline, and a plugin that hangs holds up
// no other.
package registration
