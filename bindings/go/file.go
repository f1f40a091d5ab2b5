package extant

/*
#include <extant.h>
*/
import "C"

import (
	"io"
	"io/fs"
	"sort"
	"sync"
)

// Open opens a file or directory. A regular file also implements io.ReaderAt and io.Seeker, a directory
// fs.ReadDirFile. Other types can only be asked for their attributes.
func (f *FS) Open(name string) (fs.File, error) {
	info, err := f.Stat(name)
	if err != nil {
		err.(*fs.PathError).Op = "open"
		return nil, err
	}
	if info.IsDir() {
		return &dir{fs: f, name: name, info: info}, nil
	}
	open := &file{name: name, info: info}
	if info.Mode().IsRegular() {
		err = f.at("open", name, func(handle *C.extant_fs, path *C.char, cerror **C.extant_error) C.int {
			return C.extant_file_open(handle, path, &open.handle, cerror)
		})
		if err != nil {
			return nil, err
		}
	}
	return open, nil
}

// ReadFile returns the content of a regular file.
func (f *FS) ReadFile(name string) ([]byte, error) {
	opened, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return nil, err
	}
	content := make([]byte, 0, info.Size()+1)
	for {
		if len(content) == cap(content) {
			content = append(content, 0)[:len(content)]
		}
		n, err := opened.Read(content[len(content):cap(content)])
		content = content[:len(content)+n]
		if err == io.EOF {
			return content, nil
		}
		if err != nil {
			return content, err
		}
	}
}

// ReadDir returns the entries of a directory, sorted by name. An error comes with the entries before the
// damage.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	var listing *C.extant_dir
	err := f.at("readdir", name, func(handle *C.extant_fs, path *C.char, cerror **C.extant_error) C.int {
		return C.extant_dir_open(handle, path, &listing, cerror)
	})
	if err != nil {
		return nil, err
	}
	defer C.extant_dir_close(listing)
	var entries []fs.DirEntry
	for {
		var found C.extant_dirent
		var cerror *C.extant_error
		result := C.extant_dir_next(listing, &found, &cerror)
		if result <= 0 {
			sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
			if err := taken(result, cerror); err != nil {
				return entries, &fs.PathError{Op: "readdir", Path: name, Err: err}
			}
			return entries, nil
		}
		entry := &dirEntry{fs: f, dir: name, name: C.GoStringN(found.name, C.int(found.name_len))}
		if kind := uint32(found._type); kind != 0 {
			entry.kind = modeOf(kind).Type()
		} else if info, err := entry.Info(); err == nil {
			entry.kind = info.Mode().Type()
		}
		entries = append(entries, entry)
	}
}

// dirEntry implements fs.DirEntry.
type dirEntry struct {
	fs        *FS
	dir, name string
	kind      fs.FileMode
}

func (e *dirEntry) Name() string      { return e.name }
func (e *dirEntry) IsDir() bool       { return e.kind.IsDir() }
func (e *dirEntry) Type() fs.FileMode { return e.kind }
func (e *dirEntry) String() string    { return e.kind.String() + " " + e.name }

func (e *dirEntry) Info() (fs.FileInfo, error) {
	if e.dir == "." {
		return e.fs.Lstat(e.name)
	}
	return e.fs.Lstat(e.dir + "/" + e.name)
}

// dir is an open directory.
type dir struct {
	fs      *FS
	name    string
	info    fs.FileInfo
	lock    sync.Mutex
	entries []fs.DirEntry
	isRead  bool
	closed  bool
}

func (d *dir) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *dir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: fs.ErrInvalid}
}

func (d *dir) Close() error {
	d.lock.Lock()
	defer d.lock.Unlock()
	if d.closed {
		return &fs.PathError{Op: "close", Path: d.name, Err: fs.ErrClosed}
	}
	d.closed = true
	return nil
}

// ReadDir implements fs.ReadDirFile.
func (d *dir) ReadDir(n int) ([]fs.DirEntry, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if d.closed {
		return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: fs.ErrClosed}
	}
	if !d.isRead {
		entries, err := d.fs.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.entries, d.isRead = entries, true
	}
	if n <= 0 {
		rest := d.entries
		d.entries = nil
		return rest, nil
	}
	if len(d.entries) == 0 {
		return nil, io.EOF
	}
	if n > len(d.entries) {
		n = len(d.entries)
	}
	part := d.entries[:n:n]
	d.entries = d.entries[n:]
	return part, nil
}

// file is an open file that is not a directory.
type file struct {
	name string
	info fs.FileInfo
	// Held for reading during each call, and for writing by Close.
	lock   sync.RWMutex
	closed bool
	// nil unless the file is regular.
	handle *C.extant_file
	// Guards position.
	seek     sync.Mutex
	position int64
}

func (f *file) fault(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.name, Err: err}
}

func (f *file) Stat() (fs.FileInfo, error) {
	f.lock.RLock()
	defer f.lock.RUnlock()
	if f.closed {
		return nil, f.fault("stat", fs.ErrClosed)
	}
	if f.handle == nil {
		return f.info, nil
	}
	info := &fileInfo{name: base(f.name)}
	var cerror *C.extant_error
	if err := taken(C.extant_file_stat(f.handle, &info.stat, &cerror), cerror); err != nil {
		return nil, f.fault("stat", err)
	}
	return info, nil
}

// ReadAt implements io.ReaderAt.
func (f *file) ReadAt(buffer []byte, offset int64) (int, error) {
	f.lock.RLock()
	defer f.lock.RUnlock()
	if f.closed {
		return 0, f.fault("read", fs.ErrClosed)
	}
	if f.handle == nil || offset < 0 {
		return 0, f.fault("read", fs.ErrInvalid)
	}
	if len(buffer) == 0 {
		return 0, nil
	}
	var done C.size_t
	var cerror *C.extant_error
	result := C.extant_file_pread(
		f.handle, pointer(buffer), C.size_t(len(buffer)), C.uint64_t(offset), &done, &cerror)
	if err := taken(result, cerror); err != nil {
		return 0, f.fault("read", err)
	}
	if int(done) < len(buffer) {
		return int(done), io.EOF
	}
	return int(done), nil
}

func (f *file) Read(buffer []byte) (int, error) {
	f.seek.Lock()
	defer f.seek.Unlock()
	n, err := f.ReadAt(buffer, f.position)
	f.position += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// Seek implements io.Seeker.
func (f *file) Seek(offset int64, whence int) (int64, error) {
	f.seek.Lock()
	defer f.seek.Unlock()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.position
	case io.SeekEnd:
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		offset += info.Size()
	default:
		return 0, f.fault("seek", fs.ErrInvalid)
	}
	if offset < 0 {
		return 0, f.fault("seek", fs.ErrInvalid)
	}
	f.position = offset
	return offset, nil
}

func (f *file) Close() error {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.closed {
		return f.fault("close", fs.ErrClosed)
	}
	f.closed = true
	C.extant_file_close(f.handle)
	f.handle = nil
	return nil
}
