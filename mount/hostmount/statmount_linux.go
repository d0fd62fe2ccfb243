package hostmount

import (
	"encoding/binary"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// mountIDRequest is struct mnt_id_req of linux/mount.h, first version.
type mountIDRequest struct {
	size, spare uint32
	id, param   uint64
}

const (
	mountIDRequestSize = 24
	allMounts          = ^uint64(0) // LSMT_ROOT

	// STATMOUNT_* of linux/mount.h.
	statSuper, statMount, statRoot, statPoint, statType = 0x1, 0x2, 0x8, 0x10, 0x20
	statSubtype, statSource                             = 0x100, 0x200

	// statNeeded must be answered, or the text table is used (before 6.13).
	statNeeded = statSuper | statMount | statRoot | statPoint | statType | statSource
)

// Places in struct statmount of linux/mount.h. Strings are given by their
// offset from atStrings.
const (
	atMask, atMajor, atMinor, atSuperFlags, atType = 8, 16, 20, 32, 36
	atID, atParent, atAttrs, atPropagation         = 40, 48, 64, 72
	atRoot, atPoint, atSubtype, atSource           = 104, 108, 120, 124
	atStrings                                      = 512
)

// listMounts returns the unique ids of all mounts of the namespace that can be
// reached, in ascending order (listmount(2)).
func listMounts() ([]uint64, error) {
	var ids []uint64
	page := make([]uint64, 4096)
	req := mountIDRequest{size: mountIDRequestSize, id: allMounts}
	for {
		n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)), //nolint:gosec // as the kernel wants it
			uintptr(unsafe.Pointer(&page[0])), uintptr(len(page)), 0, 0, 0) //nolint:gosec // as the kernel wants it
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return nil, errno
		}
		ids = append(ids, page[:n]...)
		if int(n) < len(page) { //nolint:gosec // at most the page's length
			slices.Sort(ids)
			return ids, nil
		}
		req.param = page[n-1]
	}
}

// statMounter reads mounts by id, with a buffer of its own.
type statMounter struct {
	buf []byte
}

// stat returns the mount with a unique id. It is ENOENT if it is gone, and
// ENOSYS if the kernel does not tell enough.
func (s *statMounter) stat(id uint64) (mount.Entry, error) {
	if s.buf == nil {
		s.buf = make([]byte, 16<<10)
	}
	req := mountIDRequest{size: mountIDRequestSize, id: id, param: statNeeded | statSubtype}
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)), //nolint:gosec // as the kernel wants it
			uintptr(unsafe.Pointer(&s.buf[0])), uintptr(len(s.buf)), 0, 0, 0) //nolint:gosec // as the kernel wants it
		switch {
		case errno == 0:
			return s.decode()
		case errno == unix.EINTR:
		case errno == unix.EOVERFLOW && len(s.buf) < 1<<20:
			s.buf = make([]byte, 2*len(s.buf))
		default:
			return mount.Entry{}, errno
		}
	}
}

func (s *statMounter) decode() (mount.Entry, error) {
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(s.buf[at:]) }
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(s.buf[at:]) }
	mask := u64(atMask)
	// A source that is empty is not answered.
	if missing := statNeeded &^ mask; missing&^uint64(statSource) != 0 {
		return mount.Entry{}, unix.ENOSYS
	}
	text := func(bit uint64, at int) string {
		if mask&bit == 0 {
			return ""
		}
		return s.text(int(u32(at)))
	}
	e := mount.Entry{
		ID:          u64(atID),
		Parent:      u64(atParent),
		Device:      strconv.Itoa(int(u32(atMajor))) + ":" + strconv.Itoa(int(u32(atMinor))),
		Root:        text(statRoot, atRoot),
		Target:      text(statPoint, atPoint),
		FSType:      text(statType, atType),
		Source:      text(statSource, atSource),
		ReadOnly:    u64(atAttrs)&unix.MOUNT_ATTR_RDONLY != 0 || u32(atSuperFlags)&unix.MS_RDONLY != 0,
		Propagation: propagationOf(u64(atPropagation)),
	}
	if sub := text(statSubtype, atSubtype); sub != "" {
		e.FSType += "." + sub
	}
	return e, nil
}

// text returns the string at an offset that the kernel gave.
func (s *statMounter) text(offset int) string {
	if offset < 0 || atStrings+offset >= len(s.buf) {
		return ""
	}
	from := s.buf[atStrings+offset:]
	if end := slices.Index(from, 0); end >= 0 {
		from = from[:end]
	}
	return string(from)
}

func propagationOf(flags uint64) mount.Propagation {
	switch {
	case flags&unix.MS_SHARED != 0:
		return mount.Shared
	case flags&unix.MS_SLAVE != 0:
		return mount.Slave
	case flags&unix.MS_UNBINDABLE != 0:
		return mount.Unbindable
	}
	return mount.Private
}

// canStatmount finds out whether the kernel has all that this file needs.
func canStatmount() bool {
	ids, err := listMounts()
	if err != nil || len(ids) == 0 {
		return false
	}
	var s statMounter
	if _, err := s.stat(ids[0]); err != nil {
		return false
	}
	// STATMOUNT_SB_SOURCE came last; every kernel that knows it says so for
	// one mount at least.
	for _, id := range ids {
		if e, err := s.stat(id); err == nil && e.Source != "" {
			return true
		}
	}
	return false
}
