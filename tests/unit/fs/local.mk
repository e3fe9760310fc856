# Units of fs/, without a mount and without root.  tests/lint/tsan.sh runs them
# under the thread sanitizer.
if BUILD_FUSE
unit_tests += \
	%D%/test_passthrough_files \
	%D%/test_notify \
	%D%/test_repeats \
	%D%/test_stats
endif
tests_unit_fs_test_passthrough_files_SOURCES = %D%/test_passthrough_files.c fs/ops/passthrough_files.c
tests_unit_fs_test_notify_SOURCES = %D%/test_notify.c fs/log/notify.c
tests_unit_fs_test_repeats_SOURCES = %D%/test_repeats.c fs/log/repeats.c
tests_unit_fs_test_stats_SOURCES = %D%/test_stats.c fs/log/stats.c
