package extant

/*
#include <extant.h>
*/
import "C"

// RepairOptions are the options of a repair; zero values choose the defaults.
type RepairOptions struct {
	// Undo is the path of the undo file; if it is empty, none is written. The bytes that the repair overwrites
	// are durable in this file before the first of them changes. The file must not exist, unless it belongs to
	// an interrupted repair of this image: that one is undone first.
	Undo string
	// Threads is the number of threads; 0 for one per core.
	Threads int
}

// Fix is a fix of a repair, or a finding that the repair leaves.
type Fix struct {
	// Finding is what was found.
	Finding
	// Remedy is what the repair does; empty for a finding that stays.
	Remedy string
	// Loss is what becomes unreachable; empty if nothing does.
	Loss string
	// Why is the reason why the finding stays; empty for a fix.
	Why string
}

// RepairReport describes a repair, or the plan of one.
type RepairReport struct {
	// Fixes has all fixes with a loss, at most 1000 others for each code, and the findings that stay.
	Fixes []Fix
	// Total is the number of all fixes.
	Total uint64
	// ChangedBytes is the number of bytes of the image that changed, or would change.
	ChangedBytes uint64
	// Complete is whether no finding above a Note is left.
	Complete bool
}

// PlanRepair returns what Repair would do, and writes nothing. The options may be nil.
func PlanRepair(image string, options *RepairOptions) (*RepairReport, error) {
	return repair(image, options, C.EXTANT_REPAIR_DRY_RUN)
}

// Repair repairs the file system in an image that is not mounted. The options may be nil. The whole repair is
// planned in memory before anything is written. A finding that cannot be repaired is not an error of Repair:
// the report has it.
func Repair(image string, options *RepairOptions) (*RepairReport, error) {
	return repair(image, options, 0)
}

func repair(image string, options *RepairOptions, flags C.uint32_t) (*RepairReport, error) {
	var a arena
	defer a.free()
	coptions := C.extant_repair_options{flags: flags}
	coptions.size = C.sizeof_extant_repair_options
	if options != nil {
		coptions.threads = C.uint32_t(options.Threads)
		coptions.undo = a.text(options.Undo)
	}
	var report *C.extant_repair_report
	var cerror *C.extant_error
	if err := taken(C.extant_repair(a.path(image), &coptions, &report, &cerror), cerror); err != nil {
		return nil, err
	}
	defer C.extant_repair_report_free(report)
	repaired := &RepairReport{
		Total:        uint64(C.extant_repair_report_total(report)),
		ChangedBytes: uint64(C.extant_repair_report_changed_bytes(report)),
		Complete:     bool(C.extant_repair_report_is_complete(report)),
	}
	for i := C.size_t(0); i < C.extant_repair_report_count(report); i++ {
		var found C.extant_fix
		if err := taken(C.extant_repair_report_fix(report, i, &found, &cerror), cerror); err != nil {
			return nil, err
		}
		fix := Fix{
			Finding: Finding{
				Code:     C.GoString(found.code),
				Message:  C.GoString(found.message),
				Rule:     C.GoString(found.rule),
				Severity: Severity(found.severity),
				Ino:      uint64(found.ino),
				Block:    uint64(found.block),
				Group:    uint64(found.group),
			},
			// GoString returns "" for NULL.
			Remedy: C.GoString(found.remedy),
			Loss:   C.GoString(found.loss),
			Why:    C.GoString(found.why),
		}
		if found.name != nil {
			fix.Name = C.GoStringN(found.name, C.int(found.name_len))
		}
		repaired.Fixes = append(repaired.Fixes, fix)
	}
	return repaired, nil
}

// Undo takes a repair back: it writes the old bytes of the undo file into the image. It refuses an image that
// changed after the repair, unless force is true.
func Undo(image, undo string, force bool) error {
	var a arena
	defer a.free()
	var flags C.uint32_t
	if force {
		flags = C.EXTANT_UNDO_FORCE
	}
	var cerror *C.extant_error
	return taken(C.extant_undo(a.path(image), a.path(undo), flags, &cerror), cerror)
}
