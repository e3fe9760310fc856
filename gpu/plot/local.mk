# ucplot: curves of runs, whatever they were logged to.
# Uses ckpt/ and metrics.
plot_sources = %D%/plot.h %D%/plot_run.c %D%/plot_csv.c %D%/plot_draw.c
gpu_libuctrain_a_SOURCES += $(plot_sources)
bin_PROGRAMS += ucplot
ucplot_SOURCES = \
	gpu/metrics/tbevents.h gpu/metrics/tbevents_read.c \
	gpu/metrics/metrics.h gpu/metrics/metrics_figures.c \
	$(plot_sources) %D%/plot_main.c
ucplot_LDADD = $(ckpt_libs)
