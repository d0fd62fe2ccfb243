//go:build unix

package projection

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Modes are exact under every umask, and in a folder that hands its group on.
func TestWriterUmask(t *testing.T) {
	content := map[string]string{"a:0644": "1", "b:0777": "2", "c:0666": "3", "d/e/f:0640": "4", "g:0400": "5"}
	for _, mask := range []int{0, 0o022, 0o027, 0o077, 0o777} {
		dir := memory(t)
		if err := os.Chmod(dir, 0o755|os.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		old := syscall.Umask(mask)
		tree := files(t, content)
		pointed := tree.AddMountPoint("p/q", "test")
		first := write(t, dir, tree)
		again := write(t, dir, tree)
		syscall.Umask(old)
		if pointed != nil || !first.Wrote || again.Wrote {
			t.Errorf("umask %03o: %+v, then %+v, %v", mask, first, again, pointed)
		}
		if got := shown(t, dir); !maps.Equal(got, normal(content)) {
			t.Errorf("umask %03o: %q", mask, got)
		}
		for _, folder := range []string{"..data/", "d", "d/e", "p", "p/q"} {
			if info, err := os.Stat(filepath.Join(dir, folder)); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("umask %03o: %s: %v, %v", mask, folder, info, err)
			}
		}
	}
}

// TestTokenFileIsAPipe: what an earlier process wrote may be anything by now.
func TestTokenFileIsAPipe(t *testing.T) {
	api := newAPI()
	req := request(projected(v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}))
	req.Path, req.Again = t.TempDir(), true
	if err := os.Mkdir(filepath.Join(req.Path, "..data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(req.Path, "..data", "token"), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		got, err := NewRenderer(api.host()).Render(context.Background(), req)
		if err == nil && content(got.Tree)["token"] == "" {
			err = errors.New("no token")
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for the pipe")
	}
}
