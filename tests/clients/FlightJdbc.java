// Arrow Flight SQL's driver of Java: metadata, a query, a prepared statement, a failure. Arguments:
// the URL and the password.

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;

public class FlightJdbc {
    public static void main(String[] arguments) throws SQLException {
        try (Connection session = DriverManager.getConnection(arguments[0], "ada", arguments[1])) {
            List<String> tables = new ArrayList<>();
            try (ResultSet found = session.getMetaData().getTables(null, "public", "%", null)) {
                while (found.next()) {
                    tables.add(found.getString("TABLE_NAME"));
                }
            }
            expect(tables.contains("jobs"), true);
            try (Statement statement = session.createStatement();
                    ResultSet rows = statement.executeQuery("SELECT job_id, gpus_milli FROM jobs ORDER BY job_id")) {
                expect(rows.next(), true);
                expect(rows.getString(1), "1");
                expect(rows.getLong(2), 1000L);
            }
            String sql = "SELECT job_id FROM jobs WHERE gpus_milli >= $1 AND team = $2";
            try (PreparedStatement statement = session.prepareStatement(sql)) {
                statement.setLong(1, 8000);
                statement.setString(2, "vision");
                try (ResultSet rows = statement.executeQuery()) {
                    expect(rows.next(), true);
                    expect(rows.getString(1), "2");
                    expect(rows.next(), false);
                }
            }
            try (Statement statement = session.createStatement()) {
                statement.executeQuery("SELECT * FROM nothing");
                throw new AssertionError("there is no such table");
            } catch (SQLException error) {
                expect(error.getMessage().contains("no table named nothing"), true);
            }
            System.out.println(tables.size() + " tables and views, a prepared statement, a failure");
        }
    }

    static void expect(Object seen, Object wanted) {
        if (!seen.equals(wanted)) {
            throw new AssertionError(seen + ", not " + wanted);
        }
    }
}
