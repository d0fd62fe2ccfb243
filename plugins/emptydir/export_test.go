package emptydir

// SetHugePages says where the kernel tells of its huge pages.
func (p *Plugin) SetHugePages(dir string) { p.hugePages = dir }
