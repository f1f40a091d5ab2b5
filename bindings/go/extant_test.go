package extant

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

// built makes an image with a few files, and returns its path.
func built(t *testing.T) string {
	t.Helper()
	tree := filepath.Join(t.TempDir(), "tree")
	for _, dir := range []string{"etc/network", "usr/lib", "empty"} {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 20000)
	for name, content := range map[string][]byte{
		"etc/motd": []byte("hello\n"), "etc/network/interfaces": []byte("lo\n"),
		"usr/lib/large": large, "nothing": nil,
	} {
		if err := os.WriteFile(filepath.Join(tree, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("etc/motd", filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "a.img")
	uuid := [16]byte{1, 2, 3}
	report, err := Build(image, []Source{{Kind: Directory, Path: tree}}, &BuildOptions{
		HeadroomBytes: 4 << 20, RootOwns: true, NoSync: true, Label: "go",
		Time: time.Unix(1700000000, 0), UUID: &uuid,
	})
	if err != nil {
		t.Fatal(err)
	}
	if report.Files != 4 || report.Symlinks != 1 || report.UUID != uuid {
		t.Fatalf("report: %+v", report)
	}
	return image
}

func TestImageIsAnFS(t *testing.T) {
	image, err := Open(built(t))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	expected := []string{"etc/motd", "etc/network/interfaces", "usr/lib/large", "empty", "nothing", "link"}
	if err := fstest.TestFS(image, expected...); err != nil {
		t.Fatal(err)
	}
	var (
		_ fs.ReadDirFS  = image
		_ fs.ReadFileFS = image
		_ fs.StatFS     = image
	)
	target, err := image.ReadLink("link")
	if err != nil || target != "etc/motd" {
		t.Fatalf("link: %q, %v", target, err)
	}
	info, err := image.Stat("link")
	if err != nil || info.Size() != 6 || info.ModTime().Unix() != 1700000000 {
		t.Fatalf("stat: %+v, %v", info, err)
	}
	file, err := image.Open("usr/lib/large")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	part := make([]byte, 10)
	n, err := file.(io.ReaderAt).ReadAt(part, 319995)
	if n != 5 || err != io.EOF || string(part[:5]) != "bcdef" {
		t.Fatalf("read: %d, %v, %q", n, err, part)
	}
}

func TestChangesStay(t *testing.T) {
	path := built(t)
	image, err := OpenWritable(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWritable(path); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("a second writer: %v", err)
	}
	for _, name := range []string{"etc/new", "etc/motd"} {
		if err := image.WriteFile(name, []byte("changed"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := image.Close(); err != nil {
		t.Fatal(err)
	}
	if err := image.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Fatalf("closed twice: %v", err)
	}
	image, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	for _, name := range []string{"etc/new", "etc/motd"} {
		if content, err := image.ReadFile(name); err != nil || string(content) != "changed" {
			t.Fatalf("%s: %q, %v", name, content, err)
		}
	}
	var refused *Error
	err = image.WriteFile("etc/other", nil, 0o600)
	if !errors.As(err, &refused) || refused.Code != CodeRefused || refused.Errno != syscall.EROFS {
		t.Fatalf("written to an image that is open for reading: %v", err)
	}
}

func TestCheckFindsDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "e.img")
	if err := Mkfs(path, 8<<20, &MkfsOptions{Generation: 2, Label: "empty"}); err != nil {
		t.Fatal(err)
	}
	if findings, clean, err := Check(path); err != nil || !clean || len(findings) != 0 {
		t.Fatalf("an empty file system: %v, %v, %v", findings, clean, err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The number of free blocks in the superblock.
	if _, err := file.WriteAt([]byte{0x77}, 1024+12); err != nil {
		t.Fatal(err)
	}
	file.Close()
	findings, _, err := Check(path)
	if err != nil || len(findings) == 0 || len(findings[0].Code) != 5 || findings[0].Ino != None {
		t.Fatalf("a damaged file system: %v, %v", findings, err)
	}
}

func TestRepairIsPlannedMadeAndUndone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.img")
	if err := Mkfs(path, 8<<20, nil); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The block bitmap's number in the first group descriptor, with blocks of 1 KiB.
	if _, err := file.WriteAt([]byte{0x77}, 2048); err != nil {
		t.Fatal(err)
	}
	file.Close()
	content := func() []byte {
		t.Helper()
		bytes, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	damaged := content()
	plan, err := PlanRepair(path, nil)
	if err != nil || plan.Total == 0 || len(plan.Fixes) == 0 || plan.ChangedBytes == 0 || !plan.Complete {
		t.Fatalf("plan: %+v, %v", plan, err)
	}
	if fix := plan.Fixes[0]; len(fix.Code) != 5 || fix.Message == "" || fix.Remedy == "" || fix.Why != "" {
		t.Fatalf("fix: %+v", fix)
	}
	if !bytes.Equal(content(), damaged) {
		t.Fatal("a plan changed the image")
	}
	undo := filepath.Join(t.TempDir(), "r.undo")
	report, err := Repair(path, &RepairOptions{Undo: undo, Threads: 1})
	if err != nil || report.Total != plan.Total || !report.Complete {
		t.Fatalf("repair: %+v, %v", report, err)
	}
	if _, clean, err := Check(path); err != nil || !clean {
		t.Fatalf("after the repair: %v, %v", clean, err)
	}
	if err := Undo(path, undo, false); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content(), damaged) {
		t.Fatal("the undo did not restore the image")
	}
	if err := Undo(path, undo, false); err == nil {
		t.Fatal("undone twice")
	}
	if _, err := Repair(path+".missing", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a missing image: %v", err)
	}
}

func TestResizeGrowsAndShrinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.img")
	if err := Mkfs(path, 8<<20, nil); err != nil {
		t.Fatal(err)
	}
	report, err := Resize(path, 16<<20)
	if err != nil || report.BeforeBytes != 8<<20 || report.AfterBytes != 16<<20 {
		t.Fatalf("grown: %+v, %v", report, err)
	}
	report, err = Resize(path, Smallest)
	if err != nil || report.AfterBytes >= 16<<20 {
		t.Fatalf("shrunk: %+v, %v", report, err)
	}
	if info, err := os.Stat(path); err != nil || uint64(info.Size()) != report.AfterBytes {
		t.Fatalf("the length of the file: %v, %v", info, err)
	}
	if _, clean, err := Check(path); err != nil || !clean {
		t.Fatalf("after the resize: %v, %v", clean, err)
	}
	var failed *Error
	if _, err := Resize(path, 1<<17); !errors.As(err, &failed) || failed.Code != CodeSize {
		t.Fatalf("too small: %v", err)
	}
}

func TestErrorsHaveTheirErrno(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a missing image: %v", err)
	}
	image, err := Open(built(t))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if _, err := image.ReadFile("etc/missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a missing file: %v", err)
	}
	if _, err := image.Open("/etc"); !errors.Is(err, fs.ErrInvalid) {
		t.Fatalf("an absolute name: %v", err)
	}
	_, err = Build(filepath.Join(t.TempDir(), "a.img"), []Source{{Kind: Tar, Path: "missing.tar"}}, nil)
	var failed *Error
	if !errors.As(err, &failed) || failed.Code != CodeSource || !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a missing source: %v", err)
	}
	if Version() == "" {
		t.Fatal("no version")
	}
}
