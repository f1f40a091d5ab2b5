package extant

/*
#include <extant.h>
*/
import "C"

// Smallest is the size for Resize to which the file system can shrink.
const Smallest uint64 = C.EXTANT_RESIZE_SMALLEST

// ResizeReport describes a resize that is done.
type ResizeReport struct {
	// BeforeBytes and AfterBytes are the sizes of the file system.
	BeforeBytes, AfterBytes uint64
	// MovedBlocks is the number of blocks that moved, and MovedInodes that of inodes with another number.
	MovedBlocks, MovedInodes uint64
}

// Resize grows or shrinks the file system in an image to so many bytes, or to Smallest. An image file gets the
// length of its file system. With a journal, a power cut at any moment is harmless, and the same call
// continues.
func Resize(image string, bytes uint64) (*ResizeReport, error) {
	var a arena
	defer a.free()
	var report C.extant_resize_report
	var cerror *C.extant_error
	result := C.extant_resize(a.path(image), C.uint64_t(bytes), nil, &report, &cerror)
	if err := taken(result, cerror); err != nil {
		return nil, err
	}
	return &ResizeReport{
		BeforeBytes: uint64(report.before_bytes),
		AfterBytes:  uint64(report.after_bytes),
		MovedBlocks: uint64(report.moved_blocks),
		MovedInodes: uint64(report.moved_inodes),
	}, nil
}
