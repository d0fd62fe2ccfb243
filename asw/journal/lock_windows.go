package journal

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/windows"
)

const carefully = 0

// takeLock locks a byte far behind the text, which others can read therefore,
// and leaves the holder's process id in the file.
func takeLock(path string) (*os.File, error) {
	f, err := openPlain(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	const how = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	at := &windows.Overlapped{OffsetHigh: math.MaxInt32}
	err = windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		text, _ := io.ReadAll(io.LimitReader(f, 32))
		err = fmt.Errorf("%w by process %s", ErrLocked, strings.TrimSpace(string(text)))
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\r\n"), 0)
	return f, nil
}
