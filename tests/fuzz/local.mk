# Fuzz targets, one fuzz_NAME.c each; --enable-fuzz builds them instead of the
# unit tests.  Otherwise each is linked into a program that runs it on its
# corpus, corpus/NAME.
fuzz_targets = \
	%D%/fuzz_zip \
	%D%/fuzz_pickle \
	%D%/fuzz_ptfile \
	%D%/fuzz_safetensors \
	%D%/fuzz_ucpack \
	%D%/fuzz_hfindex \
	%D%/fuzz_views \
	%D%/fuzz_dcp \
	%D%/fuzz_stage0 \
	%D%/fuzz_hfdir \
	%D%/fuzz_api \
	%D%/fuzz_events \
	%D%/fuzz_index
events_sources = gpu/metrics/tbevents_read.c
%C%_fuzz_events_SOURCES = %D%/fuzz_events.c $(events_sources)
%C%_fuzz_index_SOURCES = %D%/fuzz_index.c gpu/data/tokens_index.c

replays = \
	%D%/replay_zip \
	%D%/replay_pickle \
	%D%/replay_ptfile \
	%D%/replay_safetensors \
	%D%/replay_ucpack \
	%D%/replay_hfindex \
	%D%/replay_views \
	%D%/replay_dcp \
	%D%/replay_stage0 \
	%D%/replay_hfdir \
	%D%/replay_api \
	%D%/replay_events \
	%D%/replay_index
%C%_replay_zip_SOURCES = %D%/replay.c %D%/fuzz_zip.c
%C%_replay_pickle_SOURCES = %D%/replay.c %D%/fuzz_pickle.c
%C%_replay_ptfile_SOURCES = %D%/replay.c %D%/fuzz_ptfile.c
%C%_replay_safetensors_SOURCES = %D%/replay.c %D%/fuzz_safetensors.c
%C%_replay_ucpack_SOURCES = %D%/replay.c %D%/fuzz_ucpack.c
%C%_replay_hfindex_SOURCES = %D%/replay.c %D%/fuzz_hfindex.c
%C%_replay_views_SOURCES = %D%/replay.c %D%/fuzz_views.c %D%/parts.h
%C%_replay_dcp_SOURCES = %D%/replay.c %D%/fuzz_dcp.c %D%/parts.h
%C%_replay_stage0_SOURCES = %D%/replay.c %D%/fuzz_stage0.c
%C%_replay_hfdir_SOURCES = %D%/replay.c %D%/fuzz_hfdir.c %D%/parts.h
%C%_replay_api_SOURCES = %D%/replay.c %D%/fuzz_api.c
%C%_replay_events_SOURCES = %D%/replay.c %D%/fuzz_events.c $(events_sources)
%C%_replay_index_SOURCES = \
	%D%/replay.c %D%/fuzz_index.c gpu/data/tokens_index.c
EXTRA_DIST += %D%/corpus %D%/seed.sh %D%/pickle.dict
