// Package projection turns API objects into files: what configMap, secret,
// downwardAPI and projected volumes show to a pod.
//
// It has three layers, each usable alone. [Renderer] asks the host's sources
// and makes a [Tree], a pure value. [Writer] brings a folder to a tree's
// content so that readers see either the whole old or the whole new content.
// [Volume] is the volume plugin that four kinds share: render first, then
// touch the disk. [TokenCache] holds service account tokens and knows when
// they are due; CSI drivers that want tokens use it too.
//
// The layout on disk is the kubelet's, so that either can take over a folder
// of the other:
//
//	<folder>/..2026_11_29_13_32_14.1234567890/   the files of one version
//	<folder>/..data -> ..2026_11_29_...          swapped by one rename
//	<folder>/NAME   -> ..data/NAME               one link for each first element
//
// A program that needs several files of one version opens "..data" once and
// reads below it. Opening files by their public names may straddle a switch.
//
// Do not use Writer for folders that containers write to: it trusts that
// nobody else changes the folder while it works.
package projection
