# `make check`: unit tests, mounted cases, and the rules of the house.  To add a
# unit, write unit/ROOM/test_NAME.c and name it in that room's local.mk; to add a
# case, name its script in cases/local.mk.  Exit status 77 means skipped.
unit_tests =
scripts =
check_DATA =
# What is preloaded has no sanitizers.
preload = @$(MKDIR_P) $(@D); \
	$(CC) $(CPPFLAGS) -D_GNU_SOURCE -std=gnu11 -Wall -Wextra -O2 -g -fPIC -shared
include %D%/make/local.mk
include %D%/support/local.mk
include %D%/unit/base/local.mk
include %D%/unit/format/local.mk
include %D%/unit/model/local.mk
include %D%/unit/remote/local.mk
include %D%/unit/pack/local.mk
include %D%/unit/dcp/local.mk
include %D%/unit/io/local.mk
include %D%/unit/cache/local.mk
include %D%/unit/vfile/local.mk
include %D%/unit/views/local.mk
include %D%/unit/convert/local.mk
include %D%/unit/tree/local.mk
include %D%/unit/api/local.mk
include %D%/unit/fs/local.mk
include %D%/unit/train/local.mk
include %D%/cudaemu/local.mk
include %D%/programs/local.mk
include %D%/fuzz/local.mk
include %D%/bench/local.mk
include %D%/cases/local.mk
include %D%/faults/local.mk
include %D%/lint/local.mk

LDADD = %D%/libmk.a $(ckpt_libs) $(CMOCKA_LIBS)
train_ldadd = %D%/libmk.a $(train_libs) $(CMOCKA_LIBS)
TESTS += $(scripts)
if ENABLE_FUZZ
noinst_PROGRAMS += $(fuzz_targets)
LDADD += $(LIB_FUZZING_ENGINE)
else
check_PROGRAMS += $(replays)
TESTS += $(replays)
if HAVE_TEST_LIBS
if BUILD_TRAIN
check_PROGRAMS += $(train_tests) $(cuda_tests)
TESTS += $(train_tests) $(cuda_tests)
endif
check_PROGRAMS += $(unit_tests)
# The last of them has threads for all processors.
TESTS += $(unit_tests)
endif
endif

# Under ASan, what is freed is reused after 1 MiB instead of 256 (new pages would take as long as the
# tests), and a report names four callers of malloc instead of thirty (finding them takes a fifth of
# the time).  A file system in memory makes and removes small files in a third of the time.
TEST_EXTENSIONS = .sh
AM_TESTS_ENVIRONMENT = \
	top_srcdir='$(abs_top_srcdir)'; export top_srcdir; \
	top_builddir='$(abs_top_builddir)'; export top_builddir; \
	CC='$(CC)'; export CC; \
	NVCC='$(NVCC)'; export NVCC; \
	sanitize='$(enable_sanitize)'; export sanitize; \
	CPPFLAGS='$(AM_CPPFLAGS) $(CPPFLAGS)'; export CPPFLAGS; \
	ASAN_OPTIONS="quarantine_size_mb=1:malloc_context_size=4$${ASAN_OPTIONS:+:$$ASAN_OPTIONS}"; \
	export ASAN_OPTIONS; \
	memory=`df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $$4 }'`; \
	test "$${memory:-0}" -lt 4000000 || TMPDIR="$${TMPDIR:-/dev/shm}"; export TMPDIR; \
	PATH='$(abs_top_builddir)':"$$PATH"; export PATH;

# A test that hangs is one that failed, and its log is shown.
TEST_SECONDS = 600
LOG_COMPILER = timeout -k 10 $(TEST_SECONDS)
SH_LOG_COMPILER = $(LOG_COMPILER)

# Data and helpers that `make dist` would not find by itself.
CLEANFILES += demo.png
EXTRA_DIST += $(scripts) \
	%D%/demo.sh %D%/numbers %D%/arith.expect %D%/splits.expect %D%/good \
	%D%/bad %D%/events %D%/mpi.supp %D%/interop

# Without what mounts or trains: what tests/lint/distros.sh runs.
check-mountless:
	@$(MAKE) $(AM_MAKEFLAGS) check \
		TESTS='$(filter-out tests/cases/mount/% tests/cases/train/%,$(TESTS))'
.PHONY: check-mountless

# Longer runs that are not part of `make check`: speed, comparison with other
# programs (these may need Python), and faults for an hour.  `make bench BENCH="far cold"'
# runs two of the benchmarks.
bench: all %D%/programs/mkrun$(EXEEXT)
	@$(AM_TESTS_ENVIRONMENT) '$(abs_top_srcdir)'/tests/bench/run $(BENCH)
interop: all
	@$(AM_TESTS_ENVIRONMENT) rc=0; \
	for s in '$(abs_top_srcdir)'/tests/$@/*.sh; do \
		test -f "$$s" || continue; \
		echo "== $${s##*/}"; \
		"$$s"; st=$$?; \
		test $$st -eq 0 || test $$st -eq 77 || rc=1; \
	done; exit $$rc
campaign: all $(check_PROGRAMS) tests/faults/faults.so
	@$(AM_TESTS_ENVIRONMENT) '$(abs_top_srcdir)'/tests/faults/campaign
.PHONY: bench interop campaign
