# A run's figures: terminal, CSV, TensorBoard.
# Uses ckpt/.
gpu_libuctrain_a_SOURCES += \
	%D%/decimal.h %D%/decimal.c \
	%D%/csvlog.h %D%/csvlog.c \
	%D%/tbevents.h %D%/tbevents_write.c %D%/tbevents_read.c \
	%D%/metrics.h %D%/metrics.c
