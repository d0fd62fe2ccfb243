// Package mounttest lets a program that mounts be tested anywhere: without
// privileges, and on platforms that have no mounts. It holds
//
//   - [Mounter], which implements [mount.Mounter] and its optional parts in
//     memory, with faults that a test sets off at a chosen step;
//   - [TestMounter], the suite of rules that every mounter must keep;
//   - [Compare], which does the same random operations with two mounters and
//     compares what comes of them.
//
// The in-memory mounter is for tests alone: it renames folders to imitate
// mounts, and it holds a lock while it does.
//
// # How a mount is imitated
//
// Folders and files are real and lie below [Options].Dir. The mount tree is
// kept in memory and follows the kernel's rules for stacking, for busy mounts
// and for shared propagation (mount_namespaces(7)). What a mount shows is put
// at its target with ordinary file operations:
//
//   - What a mount covers is renamed into a stash and comes back when nothing
//     is mounted there any more.
//   - A file system is a folder. It is renamed to the target, so code that
//     writes there, opens an os.Root or renames within works as on a tmpfs.
//   - A bind mount of a folder is a symbolic link to the source (so is a second
//     mount of one file system). Code that asks os.Lstat about the target
//     itself sees the link, where it would see a folder on a kernel.
//   - A bind mount of a file is a hard link, or a symbolic link where file
//     system or user do not permit that.
//
// # Where it differs from a kernel
//
//   - Only the mounter's own methods know of mounts. os.RemoveAll on a tree
//     with a target inside deletes the imitation; [Mounter.RemoveAll] refuses.
//   - ReadOnly and the other flags are kept and reported. RemoveAll obeys
//     ReadOnly; the operating system's own calls do not.
//   - [Mounter.SetGroup] keeps groups in memory; the files stay their owner's.
//   - Open files make nothing busy. [Mounter.Busy] does.
//   - A bind mount without Recursive of a folder that has mounts inside shows
//     their content although Inspect and Table know that they are not there.
//     The same goes for mounts made later below the source where propagation
//     is private.
//   - A bind mount whose source was removed shows a new empty folder, into
//     which one can write; on a kernel one cannot.
//   - On Windows, bind mounts of folders need the right to make symbolic
//     links.
package mounttest
