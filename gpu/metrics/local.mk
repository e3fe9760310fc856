# A run's figures: terminal, CSV, TensorBoard.
# Uses ckpt/.
gpu_libuctrain_a_SOURCES += \
	%D%/tbevents.h %D%/tbevents_write.c %D%/tbevents_read.c \
	%D%/metrics.h %D%/metrics_figures.c %D%/metrics.c
