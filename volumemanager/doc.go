// Package volumemanager makes every volume that the pods of a node name ready
// at a path, keeps it current, and takes it away again, through crashes,
// restarts and failing storage. It is the package that an embedding program
// works with.
//
//	host := &plugins.VolumeHost{Layout: plugins.Layout{Root: dir}, Mounter: hostmount.New(hostmount.Options{}), ...}
//	registry, err := builtin.Registry(host, builtin.Options{})
//	m, err := volumemanager.New(volumemanager.Config{Host: host, Plugins: registry, Pods: pods})
//	ended := make(chan error, 1)
//	go func() { ended <- m.Run(ctx) }()    // owns every goroutine, ends with ctx
//	err = m.WaitForAttachAndMount(ctx, pod)
//	paths := m.MountedVolumes(pod)
//
// [New] does no I/O and starts nothing. [Manager.Run] does the work and
// returns when all of it has ended. All other methods may be called at any
// time from any goroutine; those without a context only look at memory.
//
// The package imports no plugin: a program links the volume kinds that it
// registers, and no others.
package volumemanager
