package hostmount_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

// TestSetGroupAsUser runs with neither root's rights nor a namespace of its
// own: the test binary again, as an ordinary user who is in one more group.
func TestSetGroupAsUser(t *testing.T) {
	const user, group, child = 1234, 4711, "VOLUMEKIT_TEST_OWN"
	if top := os.Getenv(child); top != "" {
		for _, classic := range []bool{false, true} {
			err := hostmount.New(hostmount.Options{Classic: classic}).SetGroup(t.Context(), filepath.Join(top, fmt.Sprint(classic)), mount.Ownership{Group: group})
			wantErr(t, err, unix.EPERM)
			var told *mount.OwnershipError
			if !errors.As(err, &told) || told.Failed != 1 || !strings.Contains(err.Error(), "foreign") {
				t.Errorf("error is %v", err)
			}
		}
		err := hostmount.New(hostmount.Options{}).SetGroup(t.Context(), filepath.Join(top, "false"), mount.Ownership{Group: group + 1})
		wantErr(t, err, unix.EPERM) // of which the user is no member
		return
	}
	if !nstest.RealRoot() {
		t.Skip("only root can be somebody else")
	}
	dir := nstest.Dir(t)
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // closed, since the test's own
	binary, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "binary"), binary, 0o700))
	must(t, os.Chown(filepath.Join(dir, "binary"), user, user))
	for _, name := range []string{"false", "true"} {
		write(t, mkdir(t, dir, name, "closed/sub"), "f")
		for _, path := range []string{"", "closed", "closed/sub", "closed/sub/f"} {
			must(t, os.Lchown(filepath.Join(dir, name, path), user, user))
		}
		write(t, dir, name, "foreign")
		must(t, os.Chmod(filepath.Join(dir, name, "closed/sub"), 0o100))
		must(t, os.Chmod(filepath.Join(dir, name, "closed"), 0))
		must(t, os.Chmod(filepath.Join(dir, name), 0o100))
	}
	process, err := os.StartProcess(filepath.Join(dir, "binary"), []string{"binary", "-test.run=^TestSetGroupAsUser$", "-test.v"}, &os.ProcAttr{
		Dir: "/", Env: append(os.Environ(), child+"="+dir), Files: []*os.File{nil, os.Stderr, os.Stderr},
		Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user, Groups: []uint32{group}}},
	})
	must(t, err)
	state, err := process.Wait()
	must(t, err)
	if !state.Success() {
		t.Fatal(state)
	}
	for _, name := range []string{"false", "true"} {
		wantOwner(t, filepath.Join(dir, name, "closed"), owner{group, 0o2770})
		wantOwner(t, filepath.Join(dir, name, "closed/sub"), owner{group, 0o2770})
		wantOwner(t, filepath.Join(dir, name, "closed/sub/f"), owner{group, 0o660})
		wantOwner(t, filepath.Join(dir, name, "foreign"), owner{0, 0o600})
		wantOwner(t, filepath.Join(dir, name), owner{group, 0o770})
	}
}
