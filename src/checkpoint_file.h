/*
 * checkpoint_file.h
 *	  A file of records, each with a checksum at its end.
 */
#ifndef LIVE_TOPN_CHECKPOINT_FILE_H
#define LIVE_TOPN_CHECKPOINT_FILE_H

#include "access/htup.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"

/* Writes on from some place of a file; survives the end of a transaction. */
typedef struct FileWriter
{
	File		file;			/* less than 0: only checksums are of interest */
	off_t		end;			/* written up to there */
	pg_crc32c	crc;			/* of the record so far */
	int			error;			/* errno of the first failure; 0: none */
	int			used;			/* bytes in buffer, not written yet */
	char		buffer[BLCKSZ];
} FileWriter;

/* Always false, with a warning that says errno. */
extern bool file_warning(const char *what, const char *path);

/* Flags as for open(); what is behind offset is cut off. */
extern bool writer_open(FileWriter *writer, const char *path, int flags,
						off_t offset);

/* Make it durable and close it; false, with a warning, if anything failed. */
extern bool writer_close(FileWriter *writer, const char *path);

extern void writer_begin_record(FileWriter *writer);
extern void writer_put(FileWriter *writer, const void *data, Size size);
extern void writer_put_int(FileWriter *writer, int64 value);
extern void writer_put_bytes(FileWriter *writer, const void *data, Size size);
extern void writer_put_tuple(FileWriter *writer, MinimalTuple tuple);
extern void writer_end_record(FileWriter *writer);

/* Where the next byte goes. */
extern off_t writer_position(const FileWriter *writer);

/*
 * Reads a file.  Once something is not there, or cannot be, failed is set and
 * everything is zero, null and empty.
 */
typedef struct FileReader
{
	File		file;
	off_t		size;
	off_t		at;				/* read up to there */
	pg_crc32c	crc;			/* of the record so far */
	bool		failed;
	int			first;			/* of the bytes in buffer that is not read yet */
	int			used;			/* bytes in buffer */
	char		buffer[BLCKSZ];
} FileReader;

/* Survives the end of a transaction.  If it cannot be opened: false. */
extern bool reader_open(FileReader *reader, const char *path);
extern void reader_close(FileReader *reader);

/* Read from the start again. */
extern void reader_rewind(FileReader *reader);

extern void reader_begin_record(FileReader *reader);
extern void reader_get(FileReader *reader, void *data, Size size);
extern int64 reader_get_int(FileReader *reader);

/* A number of things of which each takes at least so many bytes. */
extern int64 reader_get_count(FileReader *reader, Size each);

/* In new memory, with a zero behind them. */
extern char *reader_get_bytes(FileReader *reader);
extern MinimalTuple reader_get_tuple(FileReader *reader);

/* Compares the checksum; true if all was there. */
extern bool reader_end_record(FileReader *reader);

#endif							/* LIVE_TOPN_CHECKPOINT_FILE_H */
