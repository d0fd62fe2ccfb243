package hostmount

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

const mountinfoPath = "/proc/self/mountinfo"

// errMountinfo says that a line is not of the form that proc_pid_mountinfo(5)
// describes.
var errMountinfo = errors.New("malformed mountinfo")

// readMountinfo reads the table as text. The kernel gives it out in pieces, so
// it is read again if it changed meanwhile; where it never stops changing the
// last reading has to do.
func readMountinfo() (mount.Table, error) {
	file, err := os.Open(mountinfoPath)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	buf := bytes.NewBuffer(make([]byte, 0, 64<<10))
	for range 5 {
		buf.Reset()
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		if _, err := buf.ReadFrom(file); err != nil {
			return nil, fmt.Errorf("read %s: %w", mountinfoPath, err)
		}
		if changed, err := pollChanged(file); err != nil {
			return nil, err
		} else if !changed {
			break
		}
	}
	return parseMountinfo(buf.String())
}

// pollChanged asks whether the mount table changed since file was opened or
// last asked, without waiting (proc_pid_mounts(5)).
func pollChanged(file *os.File) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(file.Fd()), Events: unix.POLLPRI}} //nolint:gosec // a descriptor
	if err := retry(func() error { _, err := unix.Poll(fds, 0); return err }); err != nil {
		return false, fmt.Errorf("poll %s: %w", file.Name(), err)
	}
	return fds[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0, nil
}

// parseMountinfo reads the text of /proc/PID/mountinfo. The entries share
// memory with it.
func parseMountinfo(text string) (mount.Table, error) {
	table := make(mount.Table, 0, strings.Count(text, "\n"))
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		e, err := parseEntry(line)
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", errMountinfo, line, err)
		}
		table = append(table, e)
	}
	return table, nil
}

// parseEntry reads one line:
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parseEntry(line string) (e mount.Entry, err error) {
	var fields [6]string
	rest := line
	for i := range fields {
		var ok bool
		if fields[i], rest, ok = strings.Cut(rest, " "); !ok {
			return e, io.ErrUnexpectedEOF
		}
	}
	if e.ID, err = strconv.ParseUint(fields[0], 10, 64); err != nil {
		return e, err
	}
	if e.Parent, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return e, err
	}
	e.Device, e.Root, e.Target = fields[2], unescape(fields[3]), unescape(fields[4])
	e.ReadOnly = hasWord(fields[5], "ro")
	e.Propagation = mount.Private
	for {
		tag, after, ok := strings.Cut(rest, " ")
		if !ok {
			return e, io.ErrUnexpectedEOF
		}
		rest = after
		if tag == "-" {
			break
		}
		e.Propagation = widest(e.Propagation, tag)
	}
	fstype, rest, ok := strings.Cut(rest, " ")
	if !ok {
		return e, io.ErrUnexpectedEOF
	}
	source, super, _ := strings.Cut(rest, " ") // an empty source leaves no gap on some kernels
	e.FSType, e.Source = unescape(fstype), unescape(source)
	e.ReadOnly = e.ReadOnly || hasWord(super, "ro")
	return e, nil
}

// widest reads an optional field. A mount that is shared and a slave at once
// counts as shared: what is mounted below it spreads.
func widest(p mount.Propagation, tag string) mount.Propagation {
	switch {
	case strings.HasPrefix(tag, "shared:"):
		return mount.Shared
	case strings.HasPrefix(tag, "master:") && p != mount.Shared:
		return mount.Slave
	case tag == "unbindable":
		return mount.Unbindable
	}
	return p
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// unescape undoes the kernel's octal escapes (\040 for a space).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out = append(out, byte(c))
				i += 3
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}
