// Package extant builds, reads, changes, checks, repairs and resizes ext2, ext3 and ext4 images in user space,
// through the C library libextant. An open FS is an io/fs.FS.
//
// It does not own any knowledge of ext4. docs/c.md of the project explains how to link libextant.
package extant

/*
#cgo LDFLAGS: -lextant
#include <extant.h>
#include <stdlib.h>
*/
import "C"

import (
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Code is the kind of an Error: EXTANT_CODE_... in extant.h.
type Code int

// The kinds that callers need most.
const (
	CodeInUse     Code = C.EXTANT_CODE_IN_USE
	CodeNotExt4   Code = C.EXTANT_CODE_NOT_EXT4
	CodeRefused   Code = C.EXTANT_CODE_REFUSED
	CodeDamaged   Code = C.EXTANT_CODE_DAMAGED
	CodeDevice    Code = C.EXTANT_CODE_DEVICE
	CodeSource    Code = C.EXTANT_CODE_SOURCE
	CodeSize      Code = C.EXTANT_CODE_SIZE
	CodeCancelled Code = C.EXTANT_CODE_CANCELLED
)

// Error is an error of libextant. errors.Is compares it by its Errno, so that
// errors.Is(err, fs.ErrNotExist) works.
type Error struct {
	Code    Code
	Errno   syscall.Errno
	Path    string
	Message string
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the Errno.
func (e *Error) Unwrap() error { return e.Errno }

// taken converts and frees an error of the library.
func taken(result C.int, cerror *C.extant_error) error {
	if result >= 0 {
		return nil
	}
	defer C.extant_error_free(cerror)
	e := &Error{
		Code:    Code(C.extant_error_code(cerror)),
		Errno:   syscall.Errno(C.extant_error_errno(cerror)),
		Message: C.GoString(C.extant_error_message(cerror)),
	}
	if path := C.extant_error_path(cerror); path != nil {
		e.Path = C.GoString(path)
	}
	return e
}

// arena holds memory of C that is freed together.
type arena []unsafe.Pointer

func (a *arena) text(text string) *C.char {
	if text == "" {
		return nil
	}
	return a.path(text)
}

func (a *arena) path(text string) *C.char {
	c := C.CString(text)
	*a = append(*a, unsafe.Pointer(c))
	return c
}

func (a *arena) bytes(bytes []byte) unsafe.Pointer {
	c := C.CBytes(bytes)
	*a = append(*a, c)
	return c
}

func (a *arena) free() {
	for _, p := range *a {
		C.free(p)
	}
}

// Version is the version of libextant.
func Version() string { return C.GoString(C.extant_version()) }

// SourceKind is the kind of a Source.
type SourceKind uint32

// The kinds of sources.
const (
	Directory SourceKind = C.EXTANT_SOURCE_DIRECTORY
	Tar       SourceKind = C.EXTANT_SOURCE_TAR
	OCI       SourceKind = C.EXTANT_SOURCE_OCI
)

// Source is a source of a build.
type Source struct {
	Kind SourceKind
	Path string
	// Reference is the tag or digest of a container image; empty if the layout has only one.
	Reference string
}

// BuildOptions are the options of a build; zero values choose the defaults.
type BuildOptions struct {
	// ImageBytes is the size of the image; 0 for the smallest that fits, with the headroom.
	ImageBytes      uint64
	HeadroomPercent float64
	HeadroomBytes   uint64
	// Replace replaces an existing file.
	Replace bool
	// NoSync does not wait until the image is durable.
	NoSync bool
	// RootOwns makes root the owner of all files.
	RootOwns bool
	// Time is the time of the file system, which later times in the tree become. If it is zero, the time of
	// the newest file is used.
	Time time.Time
	// Threads is the number of threads; 0 for one per core.
	Threads   int
	BlockSize int
	Label     string
	// Features are written as for mke2fs -O.
	Features string
	// UUID is derived from the tree if it is nil.
	UUID *[16]byte
}

// BuildReport describes an image that was built.
type BuildReport struct {
	ImageBytes, WrittenBytes, ContentBytes, BlocksFree uint64
	Files, Directories, Symlinks, Others               uint64
	UUID                                               [16]byte
}

// Build builds an image from sources; later sources override earlier ones. The same sources and options make
// the same bytes. The image appears under its name when it is complete. The options may be nil.
func Build(image string, sources []Source, options *BuildOptions) (*BuildReport, error) {
	var a arena
	defer a.free()
	var report C.extant_build_report
	var cerror *C.extant_error
	coptions := C.extant_build_options{}
	coptions.size = C.sizeof_extant_build_options
	if options != nil {
		coptions.image_bytes = C.uint64_t(options.ImageBytes)
		coptions.headroom_percent = C.double(options.HeadroomPercent)
		coptions.headroom_bytes = C.uint64_t(options.HeadroomBytes)
		coptions.threads = C.uint32_t(options.Threads)
		coptions.block_size = C.uint32_t(options.BlockSize)
		coptions.label = a.text(options.Label)
		coptions.features = a.text(options.Features)
		if options.UUID != nil {
			coptions.uuid = (*C.uint8_t)(a.bytes(options.UUID[:]))
		}
		if options.Replace {
			coptions.flags |= C.EXTANT_BUILD_REPLACE
		}
		if options.NoSync {
			coptions.flags |= C.EXTANT_BUILD_NO_SYNC
		}
		if options.RootOwns {
			coptions.flags |= C.EXTANT_BUILD_ROOT_OWNS
		}
		if !options.Time.IsZero() {
			coptions.flags |= C.EXTANT_BUILD_TIME
			coptions.time = C.uint64_t(options.Time.Unix())
		}
	}
	csources := make([]C.extant_source, len(sources))
	for i, source := range sources {
		csources[i].kind = C.uint32_t(source.Kind)
		csources[i].path = a.path(source.Path)
		csources[i].reference = a.text(source.Reference)
	}
	var first *C.extant_source
	if len(csources) > 0 {
		first = &csources[0]
	}
	result := C.extant_build(a.path(image), first, C.size_t(len(csources)), &coptions, &report, &cerror)
	if err := taken(result, cerror); err != nil {
		return nil, err
	}
	built := &BuildReport{
		ImageBytes:   uint64(report.image_bytes),
		WrittenBytes: uint64(report.written_bytes),
		ContentBytes: uint64(report.content_bytes),
		BlocksFree:   uint64(report.blocks_free),
		Files:        uint64(report.files),
		Directories:  uint64(report.directories),
		Symlinks:     uint64(report.symlinks),
		Others:       uint64(report.others),
	}
	for i := range built.UUID {
		built.UUID[i] = byte(report.uuid[i])
	}
	return built, nil
}

// MkfsOptions are the options of an empty file system; zero values choose mke2fs's defaults.
type MkfsOptions struct {
	// Generation is 2, 3 or 4.
	Generation int
	BlockSize  int
	Label      string
	Features   string
	// UUID is random if it is nil.
	UUID       *[16]byte
	InodeRatio uint64
}

// Mkfs makes an empty file system of so many bytes in a new file. The options may be nil.
func Mkfs(image string, bytes uint64, options *MkfsOptions) error {
	var a arena
	defer a.free()
	var cerror *C.extant_error
	coptions := C.extant_mkfs_options{}
	coptions.size = C.sizeof_extant_mkfs_options
	if options != nil {
		coptions.generation = C.uint32_t(options.Generation)
		coptions.block_size = C.uint32_t(options.BlockSize)
		coptions.label = a.text(options.Label)
		coptions.features = a.text(options.Features)
		coptions.inode_ratio = C.uint64_t(options.InodeRatio)
		if options.UUID != nil {
			coptions.uuid = (*C.uint8_t)(a.bytes(options.UUID[:]))
		}
	}
	return taken(C.extant_mkfs(a.path(image), C.uint64_t(bytes), &coptions, nil, &cerror), cerror)
}

// Severity says how severe a Finding is.
type Severity int

// The severities.
const (
	Note     Severity = C.EXTANT_SEVERITY_NOTE
	Damage   Severity = C.EXTANT_SEVERITY_ERROR
	Blocking Severity = C.EXTANT_SEVERITY_FATAL
)

// None is the value of a number that a Finding does not have.
const None uint64 = C.EXTANT_NONE

// Finding is a finding of a check.
type Finding struct {
	// Code is the permanent code of the rule.
	Code, Message, Rule string
	Severity            Severity
	// Name is that of a directory entry or attribute, or empty.
	Name              string
	Ino, Block, Group uint64
}

// Check checks the file system in an image, and writes nothing. It is clean if there is no finding above a
// Note. Damage is not an error of Check.
func Check(image string) (findings []Finding, clean bool, err error) {
	var a arena
	defer a.free()
	var report *C.extant_report
	var cerror *C.extant_error
	if err := taken(C.extant_check(a.path(image), nil, &report, &cerror), cerror); err != nil {
		return nil, false, err
	}
	defer C.extant_report_free(report)
	for i := C.size_t(0); i < C.extant_report_count(report); i++ {
		var found C.extant_finding
		if err := taken(C.extant_report_finding(report, i, &found, &cerror), cerror); err != nil {
			return nil, false, err
		}
		finding := Finding{
			Code:     C.GoString(found.code),
			Message:  C.GoString(found.message),
			Rule:     C.GoString(found.rule),
			Severity: Severity(found.severity),
			Ino:      uint64(found.ino),
			Block:    uint64(found.block),
			Group:    uint64(found.group),
		}
		if found.name != nil {
			finding.Name = C.GoString(found.name)
		}
		findings = append(findings, finding)
	}
	return findings, bool(C.extant_report_is_clean(report)), nil
}

// FS is an open file system. It implements fs.FS, fs.ReadDirFS, fs.ReadFileFS, fs.StatFS and, since Go 1.25,
// fs.ReadLinkFS. Several goroutines may use it at the same time.
type FS struct {
	// Held for reading during each call, and for writing by Close.
	lock   sync.RWMutex
	handle *C.extant_fs
}

// Open opens an image file or block device for reading.
func Open(image string) (*FS, error) {
	var a arena
	defer a.free()
	var cerror *C.extant_error
	var handle *C.extant_fs
	if err := taken(C.extant_fs_open(a.path(image), &handle, &cerror), cerror); err != nil {
		return nil, err
	}
	return &FS{handle: handle}, nil
}

// OpenWritable opens an image file or block device for reading and writing.
func OpenWritable(image string) (*FS, error) {
	var a arena
	defer a.free()
	var cerror *C.extant_error
	var handle *C.extant_fs
	if err := taken(C.extant_fs_open_writable(a.path(image), &handle, &cerror), cerror); err != nil {
		return nil, err
	}
	return &FS{handle: handle}, nil
}

// Close makes all changes durable and closes the file system. Close its files first.
func (f *FS) Close() error {
	f.lock.Lock()
	defer f.lock.Unlock()
	handle := f.handle
	f.handle = nil
	if handle == nil {
		return fs.ErrClosed
	}
	var cerror *C.extant_error
	return taken(C.extant_fs_close(handle, &cerror), cerror)
}

// at runs a call on a path of the file system, and converts its error.
func (f *FS) at(op, name string, call func(*C.extant_fs, *C.char, **C.extant_error) C.int) error {
	if !fs.ValidPath(name) || strings.ContainsRune(name, 0) {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	f.lock.RLock()
	defer f.lock.RUnlock()
	if f.handle == nil {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrClosed}
	}
	var a arena
	defer a.free()
	var cerror *C.extant_error
	if err := taken(call(f.handle, a.path("/"+strings.TrimPrefix(name, ".")), &cerror), cerror); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

// Stat returns the attributes of the inode at a path. Symbolic links are followed.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	info := &fileInfo{name: base(name)}
	err := f.at("stat", name, func(handle *C.extant_fs, path *C.char, cerror **C.extant_error) C.int {
		return C.extant_fs_stat(handle, path, &info.stat, cerror)
	})
	if err != nil {
		return nil, err
	}
	return info, nil
}

// Lstat is Stat that does not follow a symbolic link at the end of the path.
func (f *FS) Lstat(name string) (fs.FileInfo, error) {
	info := &fileInfo{name: base(name)}
	err := f.at("lstat", name, func(handle *C.extant_fs, path *C.char, cerror **C.extant_error) C.int {
		return C.extant_fs_lstat(handle, path, &info.stat, cerror)
	})
	if err != nil {
		return nil, err
	}
	return info, nil
}

// ReadLink returns the target of a symbolic link.
func (f *FS) ReadLink(name string) (string, error) {
	buffer := make([]byte, 4096)
	var size C.size_t
	err := f.at("readlink", name, func(handle *C.extant_fs, path *C.char, cerror **C.extant_error) C.int {
		target := (*C.char)(unsafe.Pointer(&buffer[0]))
		return C.extant_fs_read_link(handle, path, target, C.size_t(len(buffer)), &size, cerror)
	})
	if err != nil {
		return "", err
	}
	return string(buffer[:size]), nil
}

// WriteFile replaces the content of a regular file; creates the file, owned by root, if it does not exist.
// The bytes are durable after Close.
func (f *FS) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return f.at("write", name, func(handle *C.extant_fs, path *C.char, cerror **C.extant_error) C.int {
		var exists C.bool
		if result := C.extant_fs_exists(handle, path, &exists, cerror); result < 0 {
			return result
		}
		if !exists {
			if result := C.extant_fs_create(handle, path, C.uint32_t(perm.Perm()), cerror); result < 0 {
				return result
			}
		}
		var file *C.extant_file
		if result := C.extant_file_open(handle, path, &file, cerror); result < 0 {
			return result
		}
		defer C.extant_file_close(file)
		if result := C.extant_file_truncate(file, 0, cerror); result < 0 {
			return result
		}
		result := C.extant_file_pwrite(file, pointer(data), C.size_t(len(data)), 0, cerror)
		runtime.KeepAlive(data)
		return result
	})
}

// pointer returns the address of the first byte, or nil.
func pointer(bytes []byte) unsafe.Pointer {
	if len(bytes) == 0 {
		return nil
	}
	return unsafe.Pointer(&bytes[0])
}

func base(name string) string {
	return name[strings.LastIndexByte(name, '/')+1:]
}

// fileInfo implements fs.FileInfo.
type fileInfo struct {
	name string
	stat C.extant_stat
}

func (i *fileInfo) Name() string      { return i.name }
func (i *fileInfo) Size() int64       { return int64(i.stat.size) }
func (i *fileInfo) Mode() fs.FileMode { return modeOf(uint32(i.stat.mode)) }
func (i *fileInfo) IsDir() bool       { return i.Mode().IsDir() }
func (i *fileInfo) Sys() any          { return nil }
func (i *fileInfo) ModTime() time.Time {
	return time.Unix(int64(i.stat.mtime.seconds), int64(i.stat.mtime.nanos))
}

// modeOf converts st_mode.
func modeOf(mode uint32) fs.FileMode {
	converted := fs.FileMode(mode & 0o777)
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
	case syscall.S_IFDIR:
		converted |= fs.ModeDir
	case syscall.S_IFLNK:
		converted |= fs.ModeSymlink
	case syscall.S_IFCHR:
		converted |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFBLK:
		converted |= fs.ModeDevice
	case syscall.S_IFIFO:
		converted |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		converted |= fs.ModeSocket
	default:
		converted |= fs.ModeIrregular
	}
	for bit, flag := range map[uint32]fs.FileMode{
		syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, syscall.S_ISVTX: fs.ModeSticky,
	} {
		if mode&bit != 0 {
			converted |= flag
		}
	}
	return converted
}
