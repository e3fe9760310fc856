# Units of fs/, without a mount and without root.  tests/lint/tsan.sh runs them
# under the thread sanitizer.
if BUILD_FUSE
unit_tests += \
	%D%/test_passed \
	%D%/test_pathtab \
	%D%/test_notify \
	%D%/test_repeats \
	%D%/test_stats \
	%D%/test_tree
endif
tests_unit_fs_test_passed_SOURCES = %D%/test_passed.c fs/ops/passed.c
tests_unit_fs_test_pathtab_SOURCES = %D%/test_pathtab.c fs/tree/pathtab.c
tests_unit_fs_test_notify_SOURCES = %D%/test_notify.c fs/log/notify.c
tests_unit_fs_test_repeats_SOURCES = %D%/test_repeats.c fs/log/repeats.c
tests_unit_fs_test_stats_SOURCES = %D%/test_stats.c fs/log/stats.c
tests_unit_fs_test_tree_SOURCES = %D%/test_tree.c fs/log/log.c fs/log/repeats.c fs/log/stats.c \
	fs/tree/pathtab.c fs/tree/rankfile.c \
	fs/tree/views.c fs/tree/tree.c fs/tree/tree_dir.c \
	fs/tree/survey.c fs/tree/tree_open.c \
	fs/tree/tree_lookup.c \
	fs/tree/tree_control.c
