/*
 * checkpoint_file.c
 *	  A file of records, each with a checksum at its end.
 *
 * Numbers are int64; bytes are their number and themselves.
 */
#include "postgres.h"

#include <fcntl.h>

#include "access/htup_details.h"
#include "checkpoint_file.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "waits.h"

bool
file_warning(const char *what, const char *path)
{
	ereport(WARNING,
			(errcode_for_file_access(),
			 errmsg("could not %s file \"%s\": %m", what, path)));
	return false;
}

/* ---- writing ---- */

bool
writer_open(FileWriter *writer, const char *path, int flags, off_t offset)
{
	writer->end = offset;
	writer->error = 0;
	writer->used = 0;
	writer->file = PathNameOpenFile(path, flags | PG_BINARY);
	if (writer->file < 0)
		return file_warning("open", path);
	if (FileTruncate(writer->file, offset,
					 wait_event(WAIT_CHECKPOINT_FILE)) != 0)
		writer->error = errno;
	return true;
}

static void
write_buffer(FileWriter *writer)
{
	errno = 0;
	if (writer->file >= 0 && writer->error == 0 &&
		FileWrite(writer->file, writer->buffer, writer->used, writer->end,
				  wait_event(WAIT_CHECKPOINT_FILE)) != writer->used)
		writer->error = errno ? errno : ENOSPC;
	writer->end += writer->used;
	writer->used = 0;
}

bool
writer_close(FileWriter *writer, const char *path)
{
	write_buffer(writer);
	if (writer->error == 0 &&
		FileSync(writer->file, wait_event(WAIT_CHECKPOINT_FILE)) != 0)
		writer->error = errno;
	FileClose(writer->file);
	errno = writer->error;
	return writer->error == 0 || file_warning("write", path);
}

void
writer_begin_record(FileWriter *writer)
{
	INIT_CRC32C(writer->crc);
}

void
writer_put(FileWriter *writer, const void *data, Size size)
{
	const char *from = data;

	COMP_CRC32C(writer->crc, data, size);
	while (size > 0)
	{
		Size		n = Min(size, sizeof(writer->buffer) - writer->used);

		memcpy(writer->buffer + writer->used, from, n);
		writer->used += n;
		from += n;
		size -= n;
		if (writer->used == sizeof(writer->buffer))
			write_buffer(writer);
	}
}

void
writer_put_int(FileWriter *writer, int64 value)
{
	writer_put(writer, &value, sizeof(value));
}

void
writer_put_bytes(FileWriter *writer, const void *data, Size size)
{
	writer_put_int(writer, size);
	writer_put(writer, data, size);
}

void
writer_put_tuple(FileWriter *writer, MinimalTuple tuple)
{
	writer_put_bytes(writer, tuple, tuple->t_len);
}

void
writer_end_record(FileWriter *writer)
{
	pg_crc32c	crc = writer->crc;

	FIN_CRC32C(crc);
	writer_put(writer, &crc, sizeof(crc));
}

off_t
writer_position(const FileWriter *writer)
{
	return writer->end + writer->used;
}

/* ---- reading ---- */

bool
reader_open(FileReader *reader, const char *path)
{
	memset(reader, 0, offsetof(FileReader, buffer));
	reader->file = PathNameOpenFile(path, O_RDONLY | PG_BINARY);
	if (reader->file < 0)
		return false;
	reader->size = FileSize(reader->file);
	if (reader->size < 0)
	{
		reader_close(reader);
		return false;
	}
	return true;
}

void
reader_close(FileReader *reader)
{
	FileClose(reader->file);
}

void
reader_rewind(FileReader *reader)
{
	reader->at = 0;
	reader->first = reader->used = 0;
	reader->failed = false;
}

void
reader_begin_record(FileReader *reader)
{
	INIT_CRC32C(reader->crc);
}

/* The buffer has what comes next; false at the end of the file. */
static bool
fill_buffer(FileReader *reader)
{
	reader->first = 0;
	reader->used = FileRead(reader->file, reader->buffer,
							sizeof(reader->buffer), reader->at,
							wait_event(WAIT_CHECKPOINT_FILE));
	return reader->used > 0;
}

void
reader_get(FileReader *reader, void *data, Size size)
{
	char	   *to = data;
	Size		left = size;

	while (left > 0 && !reader->failed)
	{
		Size		n = Min(left, reader->used - reader->first);

		if (n == 0)
		{
			reader->failed = !fill_buffer(reader);
			continue;
		}
		memcpy(to, reader->buffer + reader->first, n);
		reader->first += n;
		reader->at += n;
		to += n;
		left -= n;
	}
	if (reader->failed)
		memset(data, 0, size);
	COMP_CRC32C(reader->crc, data, size);
}

int64
reader_get_int(FileReader *reader)
{
	int64		value;

	reader_get(reader, &value, sizeof(value));
	return value;
}

int64
reader_get_count(FileReader *reader, Size each)
{
	int64		n = reader_get_int(reader);

	if (n < 0 || n > (reader->size - reader->at) / each)
	{
		reader->failed = true;
		n = 0;
	}
	return n;
}

char *
reader_get_bytes(FileReader *reader)
{
	int64		size = reader_get_count(reader, 1);
	char	   *data;

	if (size >= MaxAllocSize)
	{
		reader->failed = true;
		size = 0;
	}
	data = palloc(size + 1);
	data[size] = '\0';
	reader_get(reader, data, size);
	return data;
}

MinimalTuple
reader_get_tuple(FileReader *reader)
{
	return (MinimalTuple) reader_get_bytes(reader);
}

bool
reader_end_record(FileReader *reader)
{
	pg_crc32c	expected = reader->crc;
	pg_crc32c	crc;

	FIN_CRC32C(expected);
	reader_get(reader, &crc, sizeof(crc));
	return !reader->failed && EQ_CRC32C(crc, expected);
}
